// Other projects' CRDs, read from their modules; nothing of them is built.
module pdcluster.io/tools/kubernetes/foreign-crds

go 1.26.8

require (
	github.com/prometheus-operator/prometheus-operator v0.85.0
	sigs.k8s.io/gateway-api v1.6.3
)
