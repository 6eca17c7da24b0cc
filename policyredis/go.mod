module github.com/weir-go/ratelimit/policyredis

go 1.25.0

require (
	github.com/redis/go-redis/v9 v9.22.0
	github.com/stretchr/testify v1.12.1
	github.com/weir-go/ratelimit v0.1.0
	github.com/weir-go/ratelimit/policy v0.1.0
	github.com/weir-go/ratelimit/redislimit v0.1.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	go.yaml.in/yaml/v4 v4.0.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace (
	github.com/weir-go/ratelimit => ../
	github.com/weir-go/ratelimit/policy => ../policy
	github.com/weir-go/ratelimit/redislimit => ../redislimit
)
