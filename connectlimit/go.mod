module github.com/weir-go/ratelimit/connectlimit

go 1.25.0

require (
	connectrpc.com/connect v1.20.0
	github.com/stretchr/testify v1.12.1
	github.com/weir-go/ratelimit v0.1.0
	google.golang.org/protobuf v1.36.11
)

require (
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/weir-go/ratelimit => ../
