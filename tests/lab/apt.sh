# shellcheck shell=bash
# Unpacks Debian packages without installing them: a private apt configuration with the archive's
# address and keyring from the machine's sources, and separate lists and cache.
# Read after lib.sh.
# shellcheck disable=SC2034 # apt_reason is for the callers

# debian_sources: prints "URI KEYRING" for each source of the machine that is a Debian archive
# (security archives have other suites and are left out). KEYRING may be empty.
debian_sources() {
    local etc=${LAB_APT_SOURCES:-/etc/apt} f
    for f in "$etc"/sources.list "$etc"/sources.list.d/*.list; do
        [ ! -f "$f" ] || one_line_sources <"$f"
    done
    for f in "$etc"/sources.list.d/*.sources; do
        [ ! -f "$f" ] || deb822_sources <"$f"
    done
}

# sources.list(5), one-line style: deb [ option=value ... ] uri suite component...
one_line_sources() {
    sed -n 's/^[[:space:]]*deb[[:space:]]\{1,\}//p' | awk '
        {
            key = ""
            if (match($0, /^\[[^]]*\][[:space:]]*/)) {
                options = substr($0, 1, RLENGTH)
                $0 = substr($0, RLENGTH + 1)
                if (match(options, /signed-by=[^] ]+/)) key = substr(options, RSTART + 10, RLENGTH - 10)
            }
            if ($2 !~ /security/ && $0 ~ / main( |$)/) print $1, key
        }'
}

# sources.list(5), deb822 style: stanzas separated by empty lines.
deb822_sources() {
    awk -v RS= '
        {
            uris = suites = types = key = components = ""; enabled = "yes"
            n = split($0, line, "\n")
            for (i = 1; i <= n; i++) {
                if (line[i] ~ /^#/) continue
                value = line[i]; sub(/^[^:]*:[[:space:]]*/, "", value)
                field = tolower(line[i]); sub(/:.*/, "", field)
                if (field == "uris") uris = value
                else if (field == "suites") suites = value
                else if (field == "types") types = value
                else if (field == "components") components = value
                else if (field == "signed-by") key = value
                else if (field == "enabled") enabled = tolower(value)
            }
            if (enabled == "no" || (" " types " ") !~ / deb /) next
            if (suites ~ /security/ || (" " components " ") !~ / main /) next
            if (key !~ /^\//) key = ""
            split(uris, uri, /[[:space:]]+/)
            print uri[1], key
        }'
}

# The first source whose address names the main archive: ".../debian", or a dated copy of it.
debian_archive() {
    debian_sources | awk '$1 ~ /(^|\/)debian(\/[0-9TZ]+)?\/?$/ || $1 ~ /^mirror/ { print; exit }'
}

# apt_private SUITE [deb-src]: prepares the configuration for SUITE and sets apt_conf to its file; with
# deb-src for its source packages. $apt_architecture: amd64 if it is not set.
# Fails with apt_reason set if this machine has no Debian archive or it cannot be read.
apt_private() {
    local suite=$1 type=${2:-deb} dir uri keyring tool status=0
    apt_reason='' apt_conf=''
    for tool in apt-get apt-cache dpkg-deb; do
        if ! command -v "$tool" >/dev/null; then
            apt_reason="$tool is needed to fetch Debian packages"
            return 1
        fi
    done
    read -r uri keyring < <(debian_archive) || true
    if [ -z "${uri:-}" ]; then
        apt_reason="no Debian archive among this machine's apt sources"
        return 1
    fi
    dir=$(cache_dir)/apt/$suite${2:+-$2}${apt_architecture:+-$apt_architecture}
    mkdir -p -- "$dir"/etc "$dir"/state/lists/partial "$dir"/cache/archives/partial
    exec 8>"$dir/lock"
    flock 8
    : >>"$dir/state/status"
    write_apt_conf "$dir"
    write_apt_source "$dir" "$suite" "$uri" "${keyring:-/usr/share/keyrings/debian-archive-keyring.gpg}" "$type"
    update_lists "$dir" "$suite" || status=$?
    exec 8>&-
    apt_conf=$dir/apt.conf
    return "$status"
}

write_apt_conf() {
    cat >"$1/apt.conf" <<CONF
Dir::State "$1/state";
Dir::State::status "$1/state/status";
Dir::Cache "$1/cache";
Dir::Etc::sourcelist "$1/etc/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Architecture "${apt_architecture:-amd64}";
APT::Architectures { "${apt_architecture:-amd64}"; };
APT::Sandbox::User "root";
Acquire::Check-Valid-Until "false";
Acquire::Languages "none";
Acquire::Retries "3";
#clear Acquire::IndexTargets::deb::DEP-11;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
CONF
}

write_apt_source() {
    printf '%s [signed-by=%s] %s %s main\n' "$5" "$4" "$3" "$2" >"$1/etc/sources.list.new"
    mv -- "$1/etc/sources.list.new" "$1/etc/sources.list"
}

# The lists are fetched again if they are older than a day, or the source has changed.
update_lists() {
    local stamp=$1/updated
    if [ -n "$(find "$stamp" -mmin -1440 2>/dev/null)" ] && cmp -s "$stamp" "$1/etc/sources.list"; then
        return 0
    fi
    progress_step "fetching the package lists of Debian $2"
    if ! apt-get -c "$1/apt.conf" -qq --error-on=any update >"$1/update.log" 2>&1; then
        apt_reason="the package lists of Debian $2 cannot be fetched: $(grep -m 1 '^[EW]:' "$1/update.log" || echo "see $1/update.log")"
        return 1
    fi
    cp -- "$1/etc/sources.list" "$stamp"
}

# apt_version PACKAGE: prints the newest version in the suite prepared last, or nothing.
apt_version() {
    apt-cache -c "$apt_conf" show --no-all-versions "$1" 2>/dev/null | sed -n 's/^Version: //p' | head -n 1
}

# apt_unpack DIR PACKAGE...: downloads the packages and unpacks them below DIR; DIR.packages
# lists their versions. Returns 1 with apt_reason set on failure.
apt_unpack() {
    local to=$1 debs deb
    shift
    debs=$(scratch_dir)
    if ! (cd -- "$debs" && apt-get -c "$apt_conf" -qq download "$@" >log 2>&1); then
        apt_reason="download failed: $(grep -m 1 '^[EW]:' "$debs/log" || tail -n 1 "$debs/log")"
        rm -rf -- "$debs"
        return 1
    fi
    mkdir -p -- "$to"
    for deb in "$debs"/*.deb; do
        # shellcheck disable=SC2016 # dpkg-deb fills the fields in
        if ! dpkg-deb -x "$deb" "$to" || ! dpkg-deb -W --showformat '${Package} ${Version}\n' "$deb" >>"$to.packages"; then
            apt_reason="${deb##*/} cannot be unpacked"
            return 1
        fi
    done
    rm -rf -- "$debs"
}

# apt_closure PACKAGE...: prints the packages and all that they depend on.
apt_closure() {
    apt-get -c "$apt_conf" -qq --no-install-recommends --simulate install "$@" | sed -n 's/^Inst \([^ ]*\).*/\1/p'
}

# merge_usr ROOT: Debian's packages may contain /lib and /bin as directories, which would hide the host's symbolic links
# of these names in the overlay.
merge_usr() {
    local dir
    for dir in bin sbin lib lib64; do
        if [ ! -d "$1/$dir" ] || [ -L "$1/$dir" ]; then continue; fi
        mkdir -p -- "$1/usr/$dir"
        cp -a -- "$1/$dir/." "$1/usr/$dir/"
        rm -rf -- "${1:?}/$dir"
    done
}

# apt_source DIR PACKAGE: downloads a source package and unpacks it, with Debian's patches, to
# DIR/PACKAGE. Needs apt_private SUITE deb-src. Returns 1 with apt_reason set on failure.
apt_source() {
    local to=$1 package=$2 from
    from=$(scratch_dir)
    if ! (cd -- "$from" && apt-get -c "$apt_conf" -qq --download-only source "$package" >log 2>&1); then
        apt_reason="download failed: $(grep -m 1 '^[EW]:' "$from/log" || tail -n 1 "$from/log")"
    # apt has verified the signatures.
    elif ! dpkg-source --no-check -x "$from"/*.dsc "$to/$package" >"$from/log" 2>&1; then
        apt_reason="$package cannot be unpacked: $(tail -n 1 "$from/log")"
    else
        # Copies of the archives.
        rm -rf -- "$from" "$to/$package"_*.orig*
        return
    fi
    rm -rf -- "$from"
    return 1
}
