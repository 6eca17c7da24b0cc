module github.com/weir-go/ratelimit

go 1.25.0

require github.com/hashicorp/golang-lru/v2 v2.0.7

require (
	github.com/stretchr/testify v1.12.1
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
