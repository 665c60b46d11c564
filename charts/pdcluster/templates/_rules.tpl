{{/* Rendered by `make generate`; do not edit. Their source is operator/pdcluster_operator/rights.py. */}}

{{- define "pdcluster.rules.operator" -}}
# what is asked for; never written
- apiGroups: ["pdcluster.io"]
  resources: ["pdclusters"]
  verbs: ["list", "watch"]
# conditions, counts, the URL; what a scaler reads
- apiGroups: ["pdcluster.io"]
  resources: ["pdclusters/status", "pdpools/status"]
  verbs: ["patch"]
# children that block their owner's foreground deletion, where the API server asks
- apiGroups: ["pdcluster.io"]
  resources: ["pdclusters/finalizers"]
  verbs: ["update"]
# the number of engines of a role, for `kubectl scale` and autoscalers
- apiGroups: ["pdcluster.io"]
  resources: ["pdpools"]
  verbs: ["get", "list", "watch", "create", "patch"]
# engines and proxies; the old revision is deleted when the new one serves
- apiGroups: ["apps"]
  resources: ["deployments"]
  verbs: ["get", "list", "watch", "create", "patch", "delete"]
# how engines were rendered first, so that an upgrade of the operator restarts none
- apiGroups: ["apps"]
  resources: ["controllerrevisions"]
  verbs: ["get", "list", "watch", "create", "patch", "delete"]
# addresses, the proxies' configuration, accounts with pull secrets
- apiGroups: [""]
  resources: ["services", "configmaps", "serviceaccounts"]
  verbs: ["get", "list", "watch", "create", "patch"]
# a drained node takes one pod at a time
- apiGroups: ["policy"]
  resources: ["poddisruptionbudgets"]
  verbs: ["get", "list", "watch", "create", "patch"]
# who may connect; deleted where `networkPolicy.enabled` turns false
- apiGroups: ["networking.k8s.io"]
  resources: ["networkpolicies"]
  verbs: ["get", "list", "watch", "create", "patch", "delete"]
# the proxies' right to watch pods; more than it has itself it can't hand on
- apiGroups: ["rbac.authorization.k8s.io"]
  resources: ["roles", "rolebindings"]
  verbs: ["get", "list", "watch", "create", "patch"]
# readiness and troubles; handed on to the proxies
- apiGroups: [""]
  resources: ["pods"]
  verbs: ["list", "watch"]
# what happened, told at the PDCluster; why a pod does not start
- apiGroups: [""]
  resources: ["events"]
  verbs: ["create", "list"]
{{- end }}

{{- define "pdcluster.rules.leader" -}}
# if somebody deleted it; `create` can't be narrowed by name
- apiGroups: ["coordination.k8s.io"]
  resources: ["leases"]
  verbs: ["create"]
# which replica acts
- apiGroups: ["coordination.k8s.io"]
  resources: ["leases"]
  verbs: ["get", "update"]
  resourceNames: [{{ include "pdcluster.fullname" . | quote }}]
{{- end }}

{{- define "pdcluster.rules.view" -}}
# look at clusters and pools
- apiGroups: ["pdcluster.io"]
  resources: ["pdclusters", "pdpools"]
  verbs: ["get", "list", "watch"]
# the same, read one by one
- apiGroups: ["pdcluster.io"]
  resources: ["pdclusters/status", "pdpools/status", "pdpools/scale"]
  verbs: ["get"]
{{- end }}

{{- define "pdcluster.rules.edit" -}}
# make, change and delete clusters
- apiGroups: ["pdcluster.io"]
  resources: ["pdclusters"]
  verbs: ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
# change a pool; the operator alone makes and deletes them
- apiGroups: ["pdcluster.io"]
  resources: ["pdpools"]
  verbs: ["get", "list", "watch", "update", "patch"]
# `kubectl scale pdpool/NAME`
- apiGroups: ["pdcluster.io"]
  resources: ["pdpools/scale"]
  verbs: ["get", "update", "patch"]
{{- end }}

{{- define "pdcluster.rules.test" -}}
# `helm test`: one simulated cluster, looked at and deleted again
- apiGroups: ["pdcluster.io"]
  resources: ["pdclusters"]
  verbs: ["create", "get", "delete"]
{{- end }}
