"""The operator, the chart and the kubectl plugin on a control plane; tests play the kubelet."""
