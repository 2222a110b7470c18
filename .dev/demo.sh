# The driver that ./dev demo and bench take, and the demonstration of weights.
# Sourced by ./dev; uses its say, fail, build, why_no_gpu.

# Puts --driver=... before the arguments in `arguments`, unless one is there:
# the installed driver where a GPU is, else the host-memory driver, and says so.
choose_driver() {
  local reason
  case " ${arguments[*]-} " in
    *' --driver='*) ;;
    *)
      if reason=$(why_no_gpu); then
        arguments=(--driver=system ${arguments[@]+"${arguments[@]}"})
      else
        say "driver: the host-memory driver ($reason)"
        arguments=(--driver=host ${arguments[@]+"${arguments[@]}"})
      fi
      ;;
  esac
}

# Two engines that share weights, with a keeper of their own.
demo_weights() {
  local arguments=("$@")
  choose_driver
  build dev engines vmmshare_tool vmmshare_hostdriver
  local folder keeper address
  folder=$(mktemp -d)
  address=$folder/keeper
  say "running: vmmshare keep --address=$address"
  touch "$folder/said" "$folder/log" # Both are looked at before the keeper has opened them.
  build/dev/vmm/tool/vmmshare keep "--address=$address" >"$folder/said" 2>"$folder/log" &
  keeper=$!
  # shellcheck disable=SC2064
  trap "kill $keeper 2>/dev/null; rm -rf '$folder'" EXIT
  # It says where it serves once it does; why it does not is in its log.
  for _ in $(seq 300); do
    ! grep -qxF "$address" "$folder/said" || break
    kill -0 "$keeper" 2>/dev/null || break
    sleep 0.1
  done
  grep -qxF "$address" "$folder/said" || fail "the keeper does not serve: $(cat "$folder/log")"
  say "running: engines --address=$address ${arguments[*]}"
  build/dev/docs/examples/engines "--address=$address" "${arguments[@]}"
}
