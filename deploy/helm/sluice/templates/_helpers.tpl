{{- define "sluice.name" -}}
{{- $name := .Values.nameOverride | default .Chart.Name }}
{{- $full := printf "%s-%s" .Release.Name $name }}
{{- if contains $name .Release.Name }}{{ $full = .Release.Name }}{{ end }}
{{- .Values.fullnameOverride | default $full | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- define "sluice.account" -}}
{{- $own := "default" }}{{ if .Values.serviceAccount.create }}{{ $own = include "sluice.name" . }}{{ end }}
{{- .Values.serviceAccount.name | default $own }}
{{- end }}
{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "sluice.image" -}}
"{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
{{- end }}
{{- /* A value as it was written: in a file of values each number is a float64, which would make 1048576 1.048576e+06. */ -}}
{{- define "sluice.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}
{{- /* What all pods have: rights, and on which machines they run. */ -}}
{{- define "sluice.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- range $field := list "imagePullSecrets" "priorityClassName" "nodeSelector" "tolerations" }}
{{- with get $.Values $field }}
{{ dict $field . | toYaml }}
{{- end }}
{{- end }}
{{- end }}
{{- /* The bytes of a memory quantity; "" where its unit is not known here. */ -}}
{{- define "sluice.bytes" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- $unit := regexFind "[A-Za-z]*$" (toString .) }}
{{- if hasKey $units $unit }}{{ mulf (float64 (trimSuffix $unit (toString .))) (get $units $unit) | int64 }}{{ end }}
{{- end }}
{{- /* The rules. An example among the values would stay beside those of a release, whose domain it may have. */ -}}
{{- define "sluice.rules" -}}
{{- with .Values.rules }}{{ toYaml . }}{{ else -}}
example.yaml: |
  domain: edge
  descriptors:
    - key: api_key
      rate_limit: {unit: minute, requests_per_unit: 6000}
{{- end }}
{{- end }}
{{- /* How many pods there may be at once, in a rolling update too. Kubernetes starts others while pods drain, which are not counted. */ -}}
{{- define "sluice.mostPods" -}}
{{- $pods := .Values.replicaCount }}
{{- if .Values.autoscaling.enabled }}{{ $pods = .Values.autoscaling.maxReplicas }}{{ end }}
{{- add $pods .Values.maxSurge }}
{{- end }}
{{- /* What env and extraEnv set: each value by its name, "" where it comes from elsewhere. */ -}}
{{- define "sluice.set" -}}
{{- $set := deepCopy .Values.env }}
{{- range .Values.extraEnv }}{{ $_ := set $set .name (.value | default "") }}{{ end }}
{{- toJson $set }}
{{- end }}
{{- /* What rules without max_nodes divide by. Fewer than there may be pods would leave some without a share: refused, also in a rule. */ -}}
{{- define "sluice.maxNodes" -}}
{{- $most := include "sluice.mostPods" . | int }}
{{- $nodes := .Values.maxNodes | int | default $most }}
{{- with get (include "sluice.set" . | fromJson) "COORDINATION_MAX_NODES" }}{{ $nodes = int . }}{{ end }}
{{- if lt $nodes $most }}
{{- fail (printf "maxNodes is %d, and there may be %d pods at once (replicaCount or autoscaling.maxReplicas, and maxSurge): nodes beyond it would have no share of a drift budget. Raise maxNodes, or leave it at 0" $nodes $most) }}
{{- end }}
{{- range $file, $text := .Values.rules }}
{{- range regexFindAll "max_nodes\"?:\\s*[0-9]+" (regexReplaceAll "(?m)(^|\\s)#.*" $text "") -1 }}
{{- $own := regexFind "[0-9]+$" . | int }}
{{- if lt $own $most }}
{{- fail (printf "rules, %s: max_nodes is %d, and there may be %d pods at once (replicaCount or autoscaling.maxReplicas, and maxSurge): raise it to %d, or leave it out" $file $own $most $most) }}
{{- end }}
{{- end }}
{{- end }}
{{- $nodes }}
{{- end }}
{{- /* A number of keys that does not fit into the memory limit would be found out by a flood of them: refused. */ -}}
{{- define "sluice.maxKeys" -}}
{{- with .Values.resources.limits }}{{- with .memory }}
{{- $bytes := include "sluice.bytes" . }}
{{- if $bytes }}
{{- $each := ternary 800 550 (or $.Values.redis.url $.Values.redis.urlSecret.name $.Values.store.url $.Values.store.urlSecret.name | empty | not) }}
{{- $needs := mul $.Values.maxKeys $each }}
{{- if gt (int64 $needs) (int64 $bytes) }}
{{- fail (printf "maxKeys is %d, which may take %d bytes, and resources.limits.memory is %s: raise the limit, or lower maxKeys to %d at most" (int64 $.Values.maxKeys) (int64 $needs) (toString .) (div (int64 $bytes) $each)) }}
{{- end }}
{{- end }}
{{- end }}{{- end }}
{{- int64 .Values.maxKeys }}
{{- end }}
