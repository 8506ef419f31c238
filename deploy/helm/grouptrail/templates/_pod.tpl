{{/* The template of a component's pods: (dict "root" $ "component" NAME "command" WORD). */}}
{{- define "grouptrail.pod" -}}
{{- $values := index .root.Values .component -}}
{{- $serves := ne .component "maintain" -}}
metadata:
  labels:
    {{- include "grouptrail.selector" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- with .root.Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if or $serves .root.Values.podAnnotations }}
  annotations:
    {{- if $serves }}
    checksum/config: {{ include (print .root.Template.BasePath "/configmap.yaml") .root | sha256sum }}
    {{- end }}
    {{- with .root.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  serviceAccountName: {{ include "grouptrail.serviceAccount" .root | toYaml }}
  automountServiceAccountToken: {{ .root.Values.serviceAccount.automountToken }}
  enableServiceLinks: false
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.priorityClassName }}
  priorityClassName: {{ toYaml . }}
  {{- end }}
  securityContext:
    {{- toYaml .root.Values.podSecurityContext | nindent 4 }}
  {{- if eq .component "pipeline" }}
  # After SIGTERM the current batches may take ten seconds to land.
  terminationGracePeriodSeconds: 60
  {{- else if eq .component "maintain" }}
  restartPolicy: Never
  {{- end }}
  {{- with .root.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $values.affinity }}
  affinity:
    {{- toYaml $values.affinity | nindent 4 }}
  {{- else if and (ne .component "pipeline") .root.Values.pipeline.enabled (include "grouptrail.onVolume" .root) (eq .root.Values.persistence.accessMode "ReadWriteOnce") }}
  # A ReadWriteOnce volume can be mounted on one node only.
  affinity:
    podAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "grouptrail.selector" .root | nindent 14 }}
              app.kubernetes.io/component: pipeline
  {{- end }}
  containers:
    - name: {{ eq .component "pipeline" | ternary "grouptrail" .component }}
      image: {{ $values.image | default (include "grouptrail.image" .root) | toYaml }}
      {{- with .root.Values.image.pullPolicy }}
      imagePullPolicy: {{ . }}
      {{- end }}
      args: [{{ .command }}, --config, /etc/grouptrail/grouptrail.toml]
      {{- with concat (list) .root.Values.env (include "grouptrail.secretEnv" (merge (dict) $values.secretEnv .root.Values.secretEnv) | fromYamlArray) }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .root.Values.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if $serves }}
      ports:
        - name: metrics
          containerPort: {{ include "grouptrail.port" .root }}
      {{- include "grouptrail.probes" . | nindent 6 }}
      {{- end }}
      resources:
        {{- toYaml $values.resources | nindent 8 }}
      securityContext:
        {{- toYaml .root.Values.securityContext | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/grouptrail, readOnly: true}
        - name: data
          mountPath: {{ include "grouptrail.folder" .root }}
          {{- if and (eq .component "pages") (include "grouptrail.onVolume" .root) }}
          readOnly: true
          {{- end }}
        - {name: tmp, mountPath: /tmp}
        {{- range $index, $file := .root.Values.secretFiles }}
        - {name: secret-{{ $index }}, mountPath: {{ toJson $file.mountPath }}, readOnly: true}
        {{- end }}
        {{- with .root.Values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "grouptrail.fullname" .root }}
    - name: data
      {{- if include "grouptrail.onVolume" .root }}
      persistentVolumeClaim:
        claimName: {{ include "grouptrail.claim" .root | toYaml }}
      {{- else }}
      emptyDir: {sizeLimit: 1Gi}
      {{- end }}
    # Temporary files, such as Spark's shuffle files.
    - name: tmp
      emptyDir:
        sizeLimit: {{ toYaml $values.tmpSize }}
    {{- range $index, $file := .root.Values.secretFiles }}
    - name: secret-{{ $index }}
      secret:
        secretName: {{ toYaml $file.name }}
        defaultMode: 0440
        {{- with $file.items }}
        items:
          {{- toYaml . | nindent 10 }}
        {{- end }}
    {{- end }}
    {{- with .root.Values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "grouptrail.secretEnv" -}}
{{- range $variable, $key := . }}
- name: {{ $variable }}
  valueFrom:
    secretKeyRef:
      {{- toYaml $key | nindent 6 }}
{{- end }}
{{- end }}

{{- define "grouptrail.probes" -}}
{{- if eq .component "pipeline" -}}
# Metrics are served once Spark has started, which takes minutes on a slow disk. A pod that still reads
# its backlog must not be killed, so only /ready waits for the backlog.
{{ end -}}
startupProbe:
  {{- include "grouptrail.probe" (dict "root" .root "path" "/healthz") | nindent 2 }}
  periodSeconds: 5
  failureThreshold: {{ eq .component "pipeline" | ternary (div .root.Values.pipeline.startupSeconds 5) 12 }}
livenessProbe:
  {{- include "grouptrail.probe" (dict "root" .root "path" "/healthz") | nindent 2 }}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  {{- /* Pages say why they have no newer data: they are served even where the pipeline is not ready. */}}
  {{- include "grouptrail.probe" (dict "root" .root "path" (eq .component "pipeline" | ternary "/ready" "/healthz")) | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{/* The kubelet has no client certificate: where one is required, it only connects. */}}
{{- define "grouptrail.probe" -}}
{{- if or .root.Values.tls.clientCertificates .root.Values.config.exporter.tls_client_ca -}}
tcpSocket:
  port: metrics
{{- else -}}
httpGet:
  path: {{ .path }}
  port: metrics
  {{- if include "grouptrail.hasTls" .root }}
  scheme: HTTPS
  {{- end }}
{{- end }}
{{- end }}
