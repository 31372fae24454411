{{- define "waybill.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* The labels of a part: (list $ "api"). */ -}}
{{- define "waybill.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "waybill.labels" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: waybill
{{ include "waybill.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
{{- end -}}

{{- define "waybill.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "waybill.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{- /* How many pods of a part there can be. */ -}}
{{- define "waybill.most" -}}
{{- $scaled := default dict .autoscaling -}}
{{- if not .enabled }}0{{ else if $scaled.enabled }}{{ $scaled.maxReplicas }}{{ else }}{{ .replicas }}{{ end -}}
{{- end -}}

{{- /* How many connections all pods have. */ -}}
{{- define "waybill.connections" -}}
{{- $sum := 0 -}}
{{- range $part := list "api" "orchestrator" "worker" -}}
{{- $of := index $.Values $part -}}
{{- $sum = add $sum (mul (include "waybill.most" $of | int) ($of.connections | int)) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- /* The same while pods are replaced: a pod that ends what it has begun keeps its connections. */ -}}
{{- define "waybill.connectionsAtRollout" -}}
{{- add (mul 2 (include "waybill.connections" . | int)) (ternary 2 0 .Values.migrate.enabled) -}}
{{- end -}}

{{- /* Refuses values that would install something broken. */ -}}
{{- define "waybill.check" -}}
{{- range $name, $value := .Values.settings -}}
{{- if or (regexMatch "://[^/@]+@" (toString $value)) (regexMatch "(PASSWORD|SECRET|DATABASE_URL|OWNER_URL)" $name) -}}
{{- fail (printf "settings.%s would put a secret into the release: put it into the secret of the part that needs it" $name) -}}
{{- end -}}
{{- end -}}
{{- with .Values.database -}}
{{- $need := include "waybill.connectionsAtRollout" $ | int -}}
{{- $have := sub (.maxConnections | int) (.reserved | int) | int -}}
{{- if and .maxConnections (gt $need $have) -}}
{{- fail (printf "the pods may open %d connections while they are replaced, but database.maxConnections - database.reserved is %d: lower replicas, maxReplicas or connections, use a pooler, or raise max_connections of the server and database.maxConnections" $need $have) -}}
{{- end -}}
{{- end -}}
{{- with .Values.ingress -}}
{{- if and .enabled (not .host) -}}
{{- fail "ingress.host is empty: name the host that clients use" -}}
{{- end -}}
{{- if and .enabled (not .tlsSecretName) (not .tlsElsewhere) -}}
{{- fail "ingress.tlsSecretName is empty, so API keys would be sent without encryption: name the secret of the certificate, or set ingress.tlsElsewhere if a load balancer has it" -}}
{{- end -}}
{{- end -}}
{{- end -}}
