# nix-build packaging/nix: builds the tarball that `make dist` wrote into target/package.
{
  pkgs ? import <nixpkgs> { },
}:

pkgs.callPackage ./package.nix { src = ../../target/package/rdmacm-rs_0.1.0.orig.tar.xz; }
