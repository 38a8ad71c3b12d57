#!/bin/bash
# Runs programs on the project's library and on the reference's while things go wrong: lost
# packets, links and devices that go, killed peers, limits. Compares events, errno and exit
# statuses. See docs/programs.md.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
top=$here/../..
reference=44.0 devices=(rxe siw) only='*' results='' scratch='' kernel=6.1
passed=0 failed=0 skipped=0
# Seconds for one lab with a group of cases; reached only when many cases hang.
lab_limit=2400
# shellcheck source=cases.sh
. "$here/cases.sh"

usage() {
    cat <<'USAGE'
usage: tests/faults/run [OPTION]...
  --reference 44.0|65.0  version of the reference and the programs (44.0)
  --device rxe|siw       only on this device (default: both)
  --only CASE            only this case (a pattern is possible)
  --kernel 6.1|7.2       kernel of the lab (6.1)
  --results DIR          keep what was observed below DIR
  --list                 print the cases
One line for each case: ok|FAIL|skip DEVICE-CASE: facts. Status 1 when one failed.
USAGE
}

parse_options() {
    while [ $# -gt 0 ]; do
        case $1 in
        --help) usage && exit ;;
        --list) for g in "${fault_group_names[@]}"; do selected "$g"; done && exit ;;
        --reference | --device | --only | --kernel | --results)
            [ $# -ge 2 ] || { usage >&2 && exit 2; }
            ;;&
        --reference) reference=$2 ;;
        --device) devices=("$2") ;;
        --only) only=$2 ;;
        --kernel) kernel=$2 ;;
        --results) results=$(realpath -m -- "$2") ;;
        *) usage >&2 && exit 2 ;;
        esac
        shift 2
    done
}

# The cases of a group that --only selects.
selected() {
    local name
    for name in ${fault_groups[$1]}; do
        # shellcheck disable=SC2053 # a pattern
        [[ $name != $only ]] || echo "$name"
    done
}

build_steps() {
    mkdir -p "$top/target/tests-faults"
    "${CC:-cc}" -D_GNU_SOURCE -std=c17 -O1 -g -Wall -Wextra -Werror -I "$top/include" \
        -o "$top/target/tests-faults/steps" "$here/steps.c" \
        "$top/target/dist/lib/librdmacm.so.1" -libverbs
}

note() {
    printf '%-4s %s-%s: %s\n' "$1" "$2" "$3" "$4"
    case $1 in
    ok) passed=$((passed + 1)) ;;
    FAIL) failed=$((failed + 1)) ;;
    skip) skipped=$((skipped + 1)) ;;
    esac
}

# observe DIR: what each process of a case printed and how it ended.
# - ucmatose and rping print their lines partly to a buffer: sorted;
# - rping's client ends before or after its event thread has printed the disconnection.
observe() {
    local file name
    [ ! -e "$1/troubles" ] || sed 's/^/lab: /' "$1/troubles"
    for file in "$1"/*.status; do
        name=$(basename "$file" .status)
        echo "$name: status $(cat "$file")"
        case $(head -c 64 "$1/$name.out") in
        "$name: "*) cat "$1/$name.out" ;;
        *) sed -e '/^client DISCONNECT EVENT/d' -e '/^wait for RDMA_WRITE_ADV state 10/d' \
            -e "s/^/$name: /" "$1/$name.out" | sort ;;
        esac
    done
}

# judge DIR DEVICE CASE
judge() {
    local ours=$1/ours/$3 reference=$1/reference/$3 hung facts
    if [ ! -e "$reference/complete" ] || [ ! -e "$ours/complete" ]; then
        [ -e "$reference/complete" ] && hung=ours || hung="the reference"
        note FAIL "$2" "$3" "the lab with $hung ended before the case did"
        return
    fi
    observe "$reference" >"$1/$3.reference"
    observe "$ours" >"$1/$3.ours"
    facts=$(wc -l <"$1/$3.reference")" lines"
    hung=$(grep -lx hang "$ours"/*.status | sed 's|.*/||; s|\.status||' | paste -sd ' ' || true)
    if [ -n "$hung" ]; then
        note FAIL "$2" "$3" "hangs with ours: $hung"
    elif cmp -s "$1/$3.reference" "$1/$3.ours"; then
        note ok "$2" "$3" "$facts alike"
        return
    else
        note FAIL "$2" "$3" "$facts, not alike:"
    fi
    diff "$1/$3.reference" "$1/$3.ours" | sed -n '/^[<>]/s/^/     /p' | head -n 30 || true
}

# One lab for each library, at the same time.
run_group() {
    local device=$1 dir=$2 lib jobs=() status=0 unavailable=no name
    shift 2
    for lib in reference ours; do
        mkdir -p "$dir/$lib"
        "$top/lab/run" --lib "$lib" --kernel "$kernel" --reference "$reference" --peer --env STEPS_LIMIT=8 \
            --time-limit "$lab_limit" --out "$dir/$lib" -- \
            "$here/guest" "$(realpath "$top/target/tests-faults/steps")" "$device" "$@" &
        jobs+=($!)
    done
    for name in "${jobs[@]}"; do
        status=0
        wait "$name" || status=$?
        [ "$status" != 77 ] || unavailable=yes
    done
    for name in "$@"; do
        if [ "$unavailable" = yes ]; then
            note skip "$device" "$name" "the lab has no such kernel or reference"
        else
            judge "$dir" "$device" "$name"
        fi
    done
}

main() {
    local device group names
    parse_options "$@"
    scratch=$(mktemp -d)
    trap 'rm -rf -- "$scratch"' EXIT
    [ -n "$results" ] || results=$scratch
    build_steps
    for device in "${devices[@]}"; do
        for group in "${fault_group_names[@]}"; do
            mapfile -t names < <(selected "$group")
            [ ${#names[@]} = 0 ] || run_group "$device" "$results/$device" "${names[@]}"
        done
    done
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}

main "$@"
