# shellcheck shell=bash
# Read by scripts that build for arm64 on x86-64: sets what cargo, make, and the scripts that link read from the
# environment.
#
# The compiler is Debian's (tests/lab/rust), which builds the standard library for arm64 from its sources; headers and
# libraries are those of tests/lab/other-debian. The C compiler is CC, if that is set. The script that reads this file
# ends with status 77 where one of these cannot be had.

arm64_tools=aarch64-linux-gnu

arm64_unavailable() {
    [ "$1" = 77 ] || exit 1
    echo "skip arm64: $2"
    exit 77
}

for tool in gcc:gcc objcopy:binutils; do
    command -v "$arm64_tools-${tool%:*}" >/dev/null ||
        arm64_unavailable 77 "$arm64_tools-${tool%:*} (package ${tool#*:}-$arm64_tools) is not installed"
done
arm64_rust=$(tests/lab/rust path) || arm64_unavailable $? "no sources of Rust's standard library"
arm64_root=$(tests/lab/other-debian path arm64) || arm64_unavailable $? "no Debian for arm64"

export CARGO=$arm64_rust/cargo RUSTC=$arm64_rust/rustc RUSTC_BOOTSTRAP=1 CARGO_UNSTABLE_BUILD_STD=std,panic_abort
export CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu
export CC=${CC:-$arm64_tools-gcc} OBJCOPY=$arm64_tools-objcopy AR=$arm64_tools-ar STRIP=$arm64_tools-strip
# For the headers of the crate ibverbs-sys, which rdma-core's build makes.
export CC_aarch64_unknown_linux_gnu=$CC CFLAGS_aarch64_unknown_linux_gnu=--sysroot=$arm64_root HOST_CC=gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$CC
export PKG_CONFIG_ALLOW_CROSS=1 PKG_CONFIG_SYSROOT_DIR=$arm64_root
export PKG_CONFIG_LIBDIR=$arm64_root/usr/lib/$arm64_tools/pkgconfig:$arm64_root/usr/share/pkgconfig
export BINDGEN_EXTRA_CLANG_ARGS="--target=$arm64_tools --sysroot=$arm64_root"
