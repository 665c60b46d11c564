{{/* The chart's name. */}}
{{- define "pdcluster.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* The release's full name: the Deployment, the account, the Lease, and the operator's --name. */}}
{{- define "pdcluster.fullname" -}}
{{- $name := include "pdcluster.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Name of what is cluster-wide: two releases of one name in two namespaces must not share it. */}}
{{- define "pdcluster.clusterwideName" -}}
{{- printf "%s-%s" .Release.Namespace (include "pdcluster.fullname" .) }}
{{- end }}

{{- define "pdcluster.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "pdcluster.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Labels that select the operator's pods; never change them: a Deployment's selector can't be. */}}
{{- define "pdcluster.selectorLabels" -}}
app.kubernetes.io/name: {{ include "pdcluster.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Labels of everything but what a component of its own has. */}}
{{- define "pdcluster.sharedLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "pdcluster.labels" -}}
{{ include "pdcluster.selectorLabels" . }}
{{ include "pdcluster.sharedLabels" . }}
{{- end }}

{{- define "pdcluster.testLabels" -}}
app.kubernetes.io/name: {{ include "pdcluster.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: test
{{ include "pdcluster.sharedLabels" . }}
{{- end }}

{{/* Annotations of an object: the common ones and those given. (list $ dict) */}}
{{- define "pdcluster.annotations" -}}
{{- $root := index . 0 }}
{{- $all := merge (dict) (index . 1) $root.Values.commonAnnotations }}
{{- with $all -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A whole reference to an image; a digest wins over a tag. (list $ .Values.image) */}}
{{- define "pdcluster.image" -}}
{{- $root := index . 0 }}
{{- $image := index . 1 }}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{/* Namespaces that are watched, as a JSON list; empty means all. */}}
{{- define "pdcluster.watchNamespaces" -}}
{{- $found := list }}
{{- range .Values.watchNamespaces }}
{{- $namespace := tpl . $ | trim }}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" $namespace) }}
{{- fail (printf "watchNamespaces: %q is no name of a namespace" $namespace) }}
{{- end }}
{{- $found = append $found $namespace }}
{{- end }}
{{- $found | uniq | toJson }}
{{- end }}

{{/* Where the test makes its cluster: the release's namespace if it is watched, else the first. */}}
{{- define "pdcluster.testNamespace" -}}
{{- $watched := include "pdcluster.watchNamespaces" . | fromJsonArray }}
{{- if or (not $watched) (has .Release.Namespace $watched) }}
{{- .Release.Namespace }}
{{- else }}
{{- first $watched }}
{{- end }}
{{- end }}

{{/* The user of pods as a word: a number from a values file would be written as 1e+09. */}}
{{- define "pdcluster.runAsUser" -}}
{{- if kindIs "string" .Values.runAsUser }}
{{- .Values.runAsUser }}
{{- else }}
{{- .Values.runAsUser | int64 }}
{{- end }}
{{- end }}

{{/* What Pod Security "restricted" asks of a pod. */}}
{{- define "pdcluster.podSecurity" -}}
runAsNonRoot: true
{{- $user := include "pdcluster.runAsUser" . }}
{{- if ne $user "any" }}
runAsUser: {{ $user }}
runAsGroup: {{ $user }}
fsGroup: {{ $user }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* What it asks of a container, and a root file system that nobody writes to. */}}
{{- define "pdcluster.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "pdcluster.imagePullSecrets" -}}
{{- with .Values.imagePullSecrets -}}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}
