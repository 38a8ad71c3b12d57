# shellcheck shell=bash
# Read in the lab: use_packages ROOT makes the packages unpacked in ROOT (tests/consumers/packages) visible as if they were
# installed, because some programs look for their modules and configuration at fixed paths. The guest forgets it all.
use_packages() {
    local root=$1 folder lower
    for folder in bin sbin lib share libexec; do
        lower=''
        [ ! -d "$root/$folder" ] || lower+=$root/$folder:
        [ ! -d "$root/usr/$folder" ] || lower+=$root/usr/$folder:
        [ -z "$lower" ] || mount -t overlay -o "lowerdir=$lower/usr/$folder" packages "/usr/$folder" || return
    done
    cp -dR --no-clobber "$root/etc/." /etc/
}
