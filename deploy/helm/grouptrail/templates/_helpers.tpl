{{- define "grouptrail.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The name of the release's objects; 52 characters are the limit of a CronJob's name. */}}
{{- define "grouptrail.fullname" -}}
{{- $name := include "grouptrail.name" . -}}
{{- $release := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- .Values.fullnameOverride | default $release | trunc 43 | trimSuffix "-" }}
{{- end }}

{{- define "grouptrail.selector" -}}
app.kubernetes.io/name: {{ include "grouptrail.name" . | toYaml }}
app.kubernetes.io/instance: {{ toYaml .Release.Name }}
{{- end }}

{{- define "grouptrail.labels" -}}
{{ include "grouptrail.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "grouptrail.serviceAccount" -}}
{{- $default := .Values.serviceAccount.create | ternary (include "grouptrail.fullname" .) "default" -}}
{{- .Values.serviceAccount.name | default $default }}
{{- end }}

{{- define "grouptrail.image" -}}
{{- $tag := printf ":%s" (.Values.image.tag | default .Chart.AppVersion) -}}
{{- .Values.image.repository }}{{ .Values.image.digest | empty | ternary $tag (printf "@%s" .Values.image.digest) }}
{{- end }}

{{/* The mount of the volume, which is the image's working directory. */}}
{{- define "grouptrail.folder" -}}/var/lib/grouptrail{{- end }}

{{/* Not empty if tables or checkpoints are in a folder, which needs a volume; an object store needs none. */}}
{{- define "grouptrail.onVolume" -}}
{{- range list .Values.config.warehouse .Values.config.checkpoints }}
{{- if and . (not (contains "://" .)) }}yes{{ end }}
{{- end }}
{{- end }}

{{- define "grouptrail.claim" -}}
{{- .Values.persistence.existingClaim | default (include "grouptrail.fullname" .) }}
{{- end }}

{{- define "grouptrail.port" -}}
{{- splitList ":" .Values.config.exporter.listen | last }}
{{- end }}

{{- define "grouptrail.hasTls" -}}
{{- if or .Values.tls.enabled .Values.tls.clientCertificates .Values.config.exporter.tls_certificate }}yes{{ end }}
{{- end }}

{{/* The component whose metrics are scraped. */}}
{{- define "grouptrail.scraped" -}}
{{- .Values.pipeline.enabled | ternary "pipeline" "pages" }}
{{- end }}

{{- define "grouptrail.componentName" -}}
{{- include "grouptrail.fullname" .root }}{{ if ne .component "pipeline" }}-{{ .component }}{{ end }}
{{- end }}

{{/* A table of grouptrail.toml: (dict "path" LIST "table" MAP). Scalars and lists of TOML are written as in JSON. */}}
{{- define "grouptrail.toml" -}}
{{- range $key, $value := .table }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ include "grouptrail.tomlKey" $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $key, $value := .table }}
{{- if kindIs "map" $value }}
{{- $path := append $.path (include "grouptrail.tomlKey" $key) }}

[{{ join "." $path }}]
{{- include "grouptrail.toml" (dict "path" $path "table" $value) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "grouptrail.tomlKey" -}}
{{- regexMatch "^[A-Za-z0-9_-]+$" . | ternary . (toJson .) }}
{{- end }}

{{/* The names of settings that hold secrets, as grouptrail.config.secrets knows them; references to secrets are none. */}}
{{- define "grouptrail.secretSettings" -}}
{{- range $name, $value := .table }}
{{- $path := append $.path $name }}
{{- if kindIs "map" $value }}
{{- include "grouptrail.secretSettings" (dict "path" $path "table" $value) }}
{{- else if and (regexMatch "(?i)passw|passphrase|jaas|secret|token|private.?key|access.?key|account.?key|master.?key|encryption.?key|signature|credential|^ssl\\.keystore\\.key$|(^|[._])sas([._]|$)" $name) (not (regexMatch "(\\.url|\\.class|\\.client\\.id|\\.key\\.file|token_file)$" $name)) (not (contains "${" (toString $value))) }}
{{- join "." $path }},
{{- end }}
{{- end }}
{{- end }}

{{/* What the schema cannot express; each line says what to do. */}}
{{- define "grouptrail.check" -}}
{{- $config := .Values.config }}
{{- $kafka := $config.kafka | default dict }}
{{- $brokers := or (index $kafka "bootstrap.servers") $config.clusters .Values.env .Values.envFrom .Values.secretEnv .Values.pipeline.secretEnv }}
{{- if not $brokers }}
{{- fail "no brokers: set bootstrap.servers in config.kafka, such as kafka-1.example:9093" }}
{{- end }}
{{- with include "grouptrail.secretSettings" (dict "path" (list "config") "table" $config) | trimSuffix "," }}
{{- fail (printf "a ConfigMap is no place for secrets: move %s to secretEnv, or refer to a file of secretFiles (docs/security.md#secrets)" (replace "," ", " .)) }}
{{- end }}
{{- range $name := list "warehouse" "checkpoints" }}
{{- $location := get $config $name }}
{{- if and $location (not (contains "://" $location)) (not (hasPrefix (printf "%s/" (include "grouptrail.folder" $)) $location)) }}
{{- fail (printf "config.%s: %s is not on the volume: choose a folder below %s, or the URI of an object store" $name $location (include "grouptrail.folder" $)) }}
{{- end }}
{{- end }}
{{- if regexMatch "^$|^(127\\.|localhost:|\\[::1\\])" $config.exporter.listen }}
{{- fail "config.exporter.listen: nothing outside of the pod can connect to that: use 0.0.0.0:9308" }}
{{- end }}
{{- if and $config.exporter.web_config_file (kindIs "invalid" .Values.tls.enabled) (not .Values.tls.clientCertificates) }}
{{- fail "config.exporter.web_config_file: the chart does not see what is in it: set tls.enabled to true if it has tls_server_config (and tls.clientCertificates if that requires them), otherwise to false" }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}
{{- fail "ingress.hosts: name the host of the pages, such as grouptrail.example.com" }}
{{- end }}
{{- if and (or .Values.ingress.enabled .Values.monitor.kind) (not .Values.pipeline.enabled) (not .Values.pages.enabled) }}
{{- fail "ingress and monitor need a pod that serves: set pipeline.enabled or pages.enabled" }}
{{- end }}
{{- end }}
