# nix-build packaging/nix, or callPackage of this file in an overlay: docs/packaging.md.
{
  lib,
  stdenv,
  rustPlatform,
  cargo,
  rustc,
  cmake,
  pkg-config,
  python3,
  rdma-core,
  libnl,
  udev,
  # The tarball of `make dist`. It has the crates in it, so that no hash of them is needed.
  src,
}:

stdenv.mkDerivation {
  pname = "rdmacm-rs";
  version = "0.1.0";
  inherit src;

  nativeBuildInputs = [
    cargo
    rustc
    cmake
    pkg-config
    python3
    rustPlatform.bindgenHook
  ];
  buildInputs = [
    rdma-core
    libnl
    udev
  ];

  # cmake is for the crate ibverbs-sys.
  dontUseCmakeConfigure = true;

  postPatch = ''
    patchShebangs scripts programs
  '';

  preBuild = ''
    export CARGO_HOME=$TMPDIR/cargo-home
    export RUSTFLAGS="--remap-path-prefix=$PWD=/build/rdmacm-rs"
  '';

  buildFlags = [ "all" ];

  doCheck = true;
  checkTarget = "test";

  # SYSCONFDIR, UNITDIR and UDEVDIR follow PREFIX.
  installFlags = [ "PREFIX=${placeholder "out"}" ];

  meta = {
    description = "RDMA connection manager library (librdmacm), rsockets and iwpmd, written in Rust";
    license = [
      lib.licenses.mit
      lib.licenses.asl20
    ];
    platforms = [
      "x86_64-linux"
      "aarch64-linux"
      "loongarch64-linux"
      "powerpc64le-linux"
      "riscv64-linux"
      "s390x-linux"
    ];
    # In one environment with rdma-core its librdmacm.so.1 is the one that is linked into the profile.
    priority = 10;
  };
}
