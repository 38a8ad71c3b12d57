# shellcheck shell=bash
# Read by scripts/fuzz and scripts/asan: how things are built for the sanitizers. Both use the same flags and the same profile
# under AddressSanitizer, and so share their build.

# What cargo-fuzz passes for coverage.
coverage='--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
 -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1'
# An explicit target keeps the flags away from build scripts.
# shellcheck disable=SC2034
triple=$(rustc -vV | sed -n 's/^host: //p')

# build_with_coverage ROOT: for cargo in what follows; ROOT is the path of the checkout.
build_with_coverage() {
    export RUSTFLAGS=$coverage CARGO_TARGET_DIR=$1/target/fuzz
}

# build_with_asan ROOT: the same under AddressSanitizer.
build_with_asan() {
    # -Z on a stable compiler.
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS="$coverage -Zsanitizer=address" CARGO_TARGET_DIR=$1/target/asan
    # As in tests/fuzz/Cargo.toml.
    export CARGO_PROFILE_RELEASE_LTO=false CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=1
    export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true
}

# build_for_guest ROOT thread|address: the library under a sanitizer, for a guest of the lab.
build_for_guest() {
    export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$1/target/sanitized-$2
    export RUSTFLAGS="--cfg ${2}_sanitizer -Zsanitizer=$2 -Cunsafe-allow-abi-mismatch=sanitizer"
    export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=1
}
