# shellcheck shell=bash
# The stack as containers of compose.yaml. The folder's name is the project's, so
# that a folder and its ports are one stack here too.

docker_answers() {
  command -v docker >/dev/null && command -v timeout >/dev/null || return 1
  timeout 10 docker info >/dev/null 2>&1 && timeout 10 docker compose version >/dev/null 2>&1
}

docker_compose() {
  local project
  project=$(basename -- "$STACK_DIR" | tr '[:upper:]' '[:lower:]' | tr -c 'a-z0-9_\n-' -)
  ONCEONLY_KAFKA_PORT=$KAFKA_PORT ONCEONLY_REDIS_PORT=$REDIS_PORT ONCEONLY_POSTGRES_PORT=$POSTGRES_PORT \
    docker compose --project-name "$project" --file "$HERE/compose.yaml" "$@"
}

docker_logs() { docker_compose logs --no-color --tail 25 "$@" >&2 || true; }

docker_up() {
  docker_compose up --detach --wait --wait-timeout 300 "$@" </dev/null >&2 || {
    docker_logs "$@"
    fail "not every container of $* became ready; the ends of their logs are above"
  }
  [[ " $* " != *' kafka '* ]] || await_docker_kafka
}

# Kafka's port is open before it serves; a listing of the topics is the proof.
await_docker_kafka() {
  local tries
  for ((tries = 0; tries < 20; tries++)); do
    ! docker_kafka_tool topics --bootstrap-server "127.0.0.1:$KAFKA_PORT" --list </dev/null >/dev/null 2>&1 || return 0
    sleep 1
  done
  docker_logs kafka
  fail "kafka's container runs, but the broker does not answer; the end of its log is above"
}

docker_down() { docker_compose stop --timeout 30 "$@" </dev/null >&2; }

docker_reset() {
  docker_compose rm --stop --force --volumes "$@" </dev/null >&2
  say "deleted the data of: $*"
}

docker_status() {
  local service id state all_up=0
  docker_compose ps --all "$@"
  for service in "$@"; do
    id=$(docker_compose ps --quiet "$service")
    state=$([[ -z $id ]] || docker inspect --format '{{.State.Health.Status}}' "$id")
    [[ $state == healthy ]] || all_up=1
  done
  return "$all_up"
}

docker_kafka_tool() {
  local class
  class=$(require_kafka_tool "$1")
  shift
  docker_compose exec --no-TTY kafka /opt/kafka/bin/kafka-run-class.sh "$class" "$@"
}
