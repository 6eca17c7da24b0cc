module github.com/weir-go/ratelimit/proofs

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/prometheus/client_golang v1.25.0
	github.com/redis/go-redis/v9 v9.22.0
	github.com/stretchr/testify v1.12.1
	github.com/weir-go/ratelimit v0.0.0
	github.com/weir-go/ratelimit/failover v0.0.0-00010101000000-000000000000
	github.com/weir-go/ratelimit/otellimit v0.0.0-00010101000000-000000000000
	github.com/weir-go/ratelimit/policy v0.0.0-00010101000000-000000000000
	github.com/weir-go/ratelimit/promlimit v0.0.0-00010101000000-000000000000
	github.com/weir-go/ratelimit/redislimit v0.0.0-00010101000000-000000000000
	go.opentelemetry.io/otel v1.47.0
	go.opentelemetry.io/otel/sdk/metric v1.47.0
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	github.com/kylelemons/godebug v1.1.0 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_model v0.6.3 // indirect
	github.com/prometheus/common v0.72.0 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/puzpuzpuz/xsync/v4 v4.5.0 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel/log v1.47.0 // indirect
	go.opentelemetry.io/otel/metric v1.47.0 // indirect
	go.opentelemetry.io/otel/sdk v1.47.0 // indirect
	go.opentelemetry.io/otel/trace v1.47.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	go.yaml.in/yaml/v4 v4.0.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	github.com/weir-go/ratelimit => ../
	github.com/weir-go/ratelimit/failover => ../failover
	github.com/weir-go/ratelimit/otellimit => ../otellimit
	github.com/weir-go/ratelimit/policy => ../policy
	github.com/weir-go/ratelimit/promlimit => ../promlimit
	github.com/weir-go/ratelimit/redislimit => ../redislimit
)
