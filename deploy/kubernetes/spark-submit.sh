#!/bin/bash
# The jobs on Kubernetes without an operator: spark-submit creates the driver pod, which creates the executor pods.
# Run it on a machine with Spark 4.2 and permission to create pods in the namespace. The pods read the secret grouptrail;
# the driver's pod template mounts the configuration from the ConfigMap of grouptrail.yaml.
set -eu

: "${KUBERNETES_SERVER:?set it to the API server, such as https://kubernetes.example:6443}"
here=$(cd "$(dirname "$0")" && pwd)

exec spark-submit \
  --master "k8s://$KUBERNETES_SERVER" \
  --deploy-mode cluster \
  --name grouptrail \
  --driver-memory 4g \
  --num-executors 2 --executor-cores 2 --executor-memory 4g \
  --conf spark.kubernetes.namespace="${NAMESPACE:-grouptrail}" \
  --conf spark.kubernetes.authenticate.driver.serviceAccountName=spark \
  --conf spark.kubernetes.container.image="${IMAGE:-grouptrail:0.1.0}" \
  --conf spark.kubernetes.driver.podTemplateFile="$here/driver-template.yaml" \
  --conf spark.kubernetes.executor.podTemplateFile="$here/executor-template.yaml" \
  --conf spark.kubernetes.driver.secretKeyRef.GROUPTRAIL_KAFKA__SASL_JAAS_CONFIG=grouptrail:sasl.jaas.config \
  --conf spark.kubernetes.driver.secretKeyRef.GROUPTRAIL_STORAGE__AWS_ACCESS_KEY_ID=grouptrail:access-key-id \
  --conf spark.kubernetes.driver.secretKeyRef.GROUPTRAIL_STORAGE__AWS_SECRET_ACCESS_KEY=grouptrail:secret-access-key \
  --conf 'spark.driver.extraClassPath=/opt/grouptrail/jars/*' \
  --conf 'spark.executor.extraClassPath=/opt/grouptrail/jars/*' \
  local:///opt/grouptrail/spark/submit.py --config /etc/grouptrail/grouptrail.toml "$@"
