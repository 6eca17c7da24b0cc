module github.com/weir-go/ratelimit/proofs

go 1.25.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/redis/go-redis/v9 v9.22.0
	github.com/stretchr/testify v1.12.1
	github.com/weir-go/ratelimit v0.0.0-00010101000000-000000000000
	github.com/weir-go/ratelimit/failover v0.0.0-00010101000000-000000000000
	github.com/weir-go/ratelimit/redislimit v0.0.0-00010101000000-000000000000
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	github.com/puzpuzpuz/xsync/v4 v4.5.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.30.0 // indirect
)

replace (
	github.com/weir-go/ratelimit => ../
	github.com/weir-go/ratelimit/failover => ../failover
	github.com/weir-go/ratelimit/redislimit => ../redislimit
)
