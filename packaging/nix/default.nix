# nix-build packaging/nix: builds the tarball that `make dist` wrote into target/package, or into that of
# CARGO_TARGET_DIR. A relative path is one of the checkout.
{
  pkgs ? import <nixpkgs> { },
}:

let
  given = builtins.getEnv "CARGO_TARGET_DIR";
  target =
    if given == "" then
      ../../target
    else if builtins.substring 0 1 given == "/" then
      /. + given
    else
      ../.. + "/${given}";
in
pkgs.callPackage ./package.nix { src = target + "/package/rdmacm-rs_0.1.0.orig.tar.xz"; }
