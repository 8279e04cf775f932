# shellcheck shell=bash
# Apache Kafka from its Maven artifacts: one node, broker and controller in one.

KAFKA_POM=$HERE/kafka/pom.xml
KAFKA_VERSION=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$KAFKA_POM")
# Data of one release is not read by another, older one.
KAFKA_DIR=$STACK_DIR/kafka-$KAFKA_VERSION
KAFKA_LOG=$STACK_DIR/kafka.log
KAFKA_JAVA_MIN=17

kafka_pid_file() { printf '%s\n' "$KAFKA_DIR/pid"; }
kafka_mark() { printf '%s\n' "$KAFKA_DIR/server.properties"; }
kafka_data() { printf '%s\n' "$KAFKA_DIR"; }
kafka_port() { printf '%s\n' "$KAFKA_PORT"; }
kafka_log() { printf '%s\n' "$KAFKA_LOG"; }
kafka_stop_signal() { printf 'TERM\n'; }

java_major() {
  "$1" -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p'
}

# Prints the path of a Java that Kafka runs on.
find_java() {
  local java major
  for java in "${JAVA_HOME:-/nonexistent}/bin/java" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
    [[ -x $java ]] || continue
    major=$(java_major "$java")
    if ((${major:-0} >= KAFKA_JAVA_MIN)); then
      printf '%s\n' "$java"
      return 0
    fi
  done
  return 1
}

# Sets JAVA.
require_java() {
  JAVA=$(find_java) && return 0
  require_apt "a Java of version $KAFKA_JAVA_MIN or newer"
  refresh_package_lists
  local package
  for package in openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless; do
    if has_candidate "$package"; then
      install_packages "$package"
      break
    fi
  done
  JAVA=$(find_java) ||
    fail "Kafka needs Java $KAFKA_JAVA_MIN or newer; install one and set JAVA_HOME"
}

# Sets KAFKA_JARS to the folder of Kafka's jars, fetching them once per pom.xml.
require_kafka_jars() {
  local sum fresh log
  sum=$(sha256sum "$KAFKA_POM" | cut -c 1-12)
  KAFKA_JARS=$STACK_DIR/jars-$KAFKA_VERSION-$sum
  [[ ! -d $KAFKA_JARS ]] || return 0
  require_java
  require maven mvn
  say "fetching Apache Kafka $KAFKA_VERSION from Maven Central into $KAFKA_JARS"
  fresh=$KAFKA_JARS.part
  log=$STACK_DIR/maven.log
  rm -rf -- "$fresh"
  mvn -B -ntp -Dstyle.color=never -f "$KAFKA_POM" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$fresh" </dev/null >"$log" 2>&1 || {
    show_tail "$log"
    fail "Maven could not fetch Apache Kafka $KAFKA_VERSION; without it there is no Kafka here"
  }
  mv -T -- "$fresh" "$KAFKA_JARS"
}

# run_kafka_class LOG_LEVEL CLASS ARG...: a tool, so tuned for a quick start.
run_kafka_class() {
  local level=$1
  shift
  "$JAVA" -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -Dorg.slf4j.simpleLogger.defaultLogLevel="$level" -cp "$KAFKA_JARS/*" "$@"
}

# Replication of one, since there is one node; few partitions in the internal
# topics and no wait for further members, so that tests start fast; quick
# compaction and short sessions, so that they need not wait for either.
write_kafka_config() {
  cat >"$KAFKA_DIR/server.properties" <<CONFIG
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$KAFKA_CONTROLLER_PORT
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT,CONTROLLER://127.0.0.1:$KAFKA_CONTROLLER_PORT
advertised.listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs=$KAFKA_DIR/data

auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4

group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.cleaner.backoff.ms=1000
log.cleaner.dedupe.buffer.size=33554432
num.network.threads=2
num.io.threads=4
CONFIG
}

format_kafka() {
  [[ ! -f $KAFKA_DIR/data/meta.properties ]] || return 0
  local id log=$STACK_DIR/kafka-format.log
  id=onceonly$(od -An -N7 -tx1 /dev/urandom | tr -d ' \n')
  rm -rf -- "$KAFKA_DIR/data"
  run_kafka_class warn kafka.tools.StorageTool format -t "$id" -c "$KAFKA_DIR/server.properties" \
    >"$log" 2>&1 || {
    show_tail "$log"
    fail "Kafka's storage tool could not format $KAFKA_DIR/data"
  }
}

kafka_prepare() {
  require_java
  require_kafka_jars
}

kafka_start() {
  require_free_port kafka "$KAFKA_PORT" ONCEONLY_KAFKA_PORT
  require_free_port "kafka's controller" "$KAFKA_CONTROLLER_PORT" ONCEONLY_KAFKA_CONTROLLER_PORT
  mkdir -p -- "$KAFKA_DIR"
  rm -f -- "$KAFKA_DIR/ready"
  write_kafka_config
  format_kafka
  spawn "$KAFKA_LOG" "$JAVA" -Xms256m -Xmx512m -XX:+ExitOnOutOfMemoryError \
    -Dorg.slf4j.simpleLogger.defaultLogLevel=info \
    -Dorg.slf4j.simpleLogger.showDateTime=true \
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS" \
    -cp "$KAFKA_JARS/*" kafka.Kafka "$KAFKA_DIR/server.properties"
  printf '%s\n' "$SPAWNED" >"$KAFKA_DIR/pid"
}

# The port opens before the broker serves; a listing of the topics is the proof.
# It costs a second of a JVM, so one success counts for the life of the process.
kafka_ready() {
  local pid=$1 proven=''
  port_answers "$KAFKA_PORT" || return 1
  read -r proven 2>/dev/null <"$KAFKA_DIR/ready" || true
  [[ $proven != "$pid" ]] || return 0
  [[ -n ${JAVA:-} && -n ${KAFKA_JARS:-} ]] || kafka_prepare
  run_kafka_class off org.apache.kafka.tools.TopicCommand \
    --bootstrap-server "127.0.0.1:$KAFKA_PORT" --list >/dev/null 2>&1 || return 1
  printf '%s\n' "$pid" >"$KAFKA_DIR/ready"
}

# Prints the Java class of a tool by the name of its script in a Kafka download.
require_kafka_tool() {
  case $1 in
    topics) printf 'org.apache.kafka.tools.TopicCommand\n' ;;
    configs) printf 'org.apache.kafka.tools.ConfigCommand\n' ;;
    consumer-groups) printf 'org.apache.kafka.tools.consumer.group.ConsumerGroupCommand\n' ;;
    console-producer) printf 'org.apache.kafka.tools.ConsoleProducer\n' ;;
    console-consumer) printf 'org.apache.kafka.tools.consumer.ConsoleConsumer\n' ;;
    groups) printf 'org.apache.kafka.tools.GroupsCommand\n' ;;
    cluster) printf 'org.apache.kafka.tools.ClusterTool\n' ;;
    log-dirs) printf 'org.apache.kafka.tools.LogDirsCommand\n' ;;
    broker-api-versions) printf 'org.apache.kafka.tools.BrokerApiVersionsCommand\n' ;;
    transactions) printf 'org.apache.kafka.tools.TransactionsCommand\n' ;;
    delete-records) printf 'org.apache.kafka.tools.DeleteRecordsCommand\n' ;;
    get-offsets) printf 'org.apache.kafka.tools.GetOffsetShell\n' ;;
    producer-perf-test) printf 'org.apache.kafka.tools.ProducerPerformance\n' ;;
    consumer-perf-test) printf 'org.apache.kafka.tools.ConsumerPerformance\n' ;;
    dump-log) printf 'org.apache.kafka.tools.DumpLogSegments\n' ;;
    storage) printf 'kafka.tools.StorageTool\n' ;;
    *.*) printf '%s\n' "$1" ;;
    *) fail "no Kafka tool is called '$1'; give a known one, such as topics, configs or consumer-groups, or the name of a Java class" ;;
  esac
}
