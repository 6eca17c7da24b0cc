module github.com/weir-go/ratelimit

go 1.25.0

require (
	github.com/hashicorp/golang-lru/v2 v2.0.7
	github.com/puzpuzpuz/xsync/v4 v4.5.0
)
