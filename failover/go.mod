module github.com/weir-go/ratelimit/failover

go 1.25.0

replace github.com/weir-go/ratelimit => ../

require (
	github.com/stretchr/testify v1.12.1
	github.com/weir-go/ratelimit v0.1.0
)

require (
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	github.com/puzpuzpuz/xsync/v4 v4.5.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
