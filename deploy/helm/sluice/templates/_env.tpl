{{- /* The settings of a node. What env or extraEnv name is not set here as well. */ -}}
{{- define "sluice.env" -}}
{{- $named := include "sluice.set" . | fromJson }}
{{- if hasKey $named "DRAIN_TIME" }}{{ fail "env has DRAIN_TIME: set drainSeconds, from which terminationGracePeriodSeconds follows too" }}{{ end }}
{{- range list "PORT" "GRPC_PORT" "DEBUG_PORT" }}{{ if hasKey $named . }}{{ fail (printf "env has %s: Services, probes and the NetworkPolicy have the default ports" .) }}{{ end }}{{ end }}
{{- if regexMatch "^(127\\.|localhost|\\[?::1)" (get $named "DEBUG_HOST" | toString) }}{{ fail "env has DEBUG_HOST: probes and Prometheus ask the debug port at the pod's address, and networkPolicy closes it to others" }}{{ end }}
{{- range regexSplit "(?m)^- " (include "sluice.ownEnv" .) -1 }}
{{- $name := regexFind "[A-Z][A-Z_]+" . }}
{{- if and $name (not (hasKey $named $name)) }}
- {{ trim . }}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.env }}
- {name: {{ $name }}, value: {{ include "sluice.text" $value | quote }}}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- define "sluice.ownEnv" -}}
- {name: RUNTIME_ROOT, value: /etc/sluice}
- {name: DEBUG_HOST, value: 0.0.0.0}
- {name: RUNTIME_APPDIRECTORY, value: rules}
- {name: RUNTIME_WATCH_ROOT, value: "false"}
- {name: RUNTIME_IGNOREDOTFILES, value: "true"}
- {name: DRAIN_TIME, value: "{{ .Values.drainSeconds }}s"}
{{- if .Values.maxKeys }}
- {name: MAX_KEYS, value: {{ include "sluice.maxKeys" . | quote }}}
{{- end }}
- {name: COORDINATION_MAX_NODES, value: {{ include "sluice.maxNodes" . | quote }}}
{{- if .Values.rulesCopy.enabled }}
- {name: CONFIG_LAST_GOOD_FILE, value: /var/lib/sluice/rules.json}
{{- end }}
{{- if .Values.store.urlSecret.name }}
- name: STORE_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.store.urlSecret.name }}, key: {{ .Values.store.urlSecret.key }}}}
{{- else if .Values.store.url }}
- {name: STORE_URL, value: {{ .Values.store.url | quote }}}
{{- else if not (hasKey (include "sluice.set" . | fromJson) "STORE_URL") }}
{{- with .Values.redis }}
{{- if .urlSecret.name }}
- name: REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ .urlSecret.name }}, key: {{ .urlSecret.key }}}}
{{- else if .url }}
- {name: REDIS_URL, value: {{ .url | quote }}}
{{- end }}
{{- if or .url .urlSecret.name }}
- {name: REDIS_TYPE, value: {{ .type | quote }}}
- {name: REDIS_TLS, value: {{ .tls | quote }}}
{{- if .caSecret.name }}
- {name: REDIS_TLS_CACERT, value: /etc/sluice/redis-ca/ca.crt}
{{- end }}
{{- if .clientCertSecret }}
- {name: REDIS_TLS_CLIENT_CERT, value: /etc/sluice/redis-client/tls.crt}
- {name: REDIS_TLS_CLIENT_KEY, value: /etc/sluice/redis-client/tls.key}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- /* Others find a node by this address, also its debug port: no pod resolves the name of another. */}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: PEER_ADDR, value: "[$(POD_IP)]:8082"}
{{- if .Values.peers.enabled }}
- {name: PEERS, value: "dns:{{ include "sluice.name" . }}-peers.{{ .Release.Namespace }}.svc:8082"}
{{- end }}
{{- with .Values.existingSecret }}
{{- range list "REDIS_AUTH" "REDIS_SENTINEL_AUTH" "PEER_SECRET" "HOLD_KEYS" "ADMIN_TOKEN" }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ $.Values.existingSecret }}, key: {{ . }}, optional: true}}
{{- end }}
{{- end }}
{{- end }}
