{{- define "headrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "headrace.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "headrace.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "headrace.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ include "headrace.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "headrace.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "headrace.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* Keys of the authentication secret and the variables they become. */ -}}
{{- define "headrace.secrets" -}}
{{- if eq .Values.auth.driver "signature" }}
signature-key: DW_SIGNATURE_KEY
worker-signature-key: DW_WORKER_SIGNATURE_KEY
operator-signature-key: DW_OPERATOR_SIGNATURE_KEY
admin-signature-key: DW_ADMIN_SIGNATURE_KEY
{{- else }}
auth-token: DW_AUTH_TOKEN
worker-token: DW_WORKER_TOKEN
operator-token: DW_OPERATOR_TOKEN
admin-token: DW_ADMIN_TOKEN
{{- end }}
{{- end }}
