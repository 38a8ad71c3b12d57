# shellcheck shell=bash
# The documents in packages; sourced by the tests of this folder, which have set `work`.

# has_documents FOLDER PAGE: the archive on standard input has PAGE in FOLDER, and everything that the pages in FOLDER
# link to. bsdtar reads what packages are made of: tar, cpio, compressed or not. Documents may be compressed.
has_documents() {
    local unpacked=${work:?}/documents page link missing=0
    rm -rf "$unpacked"
    mkdir "$unpacked"
    bsdtar -x -C "$unpacked" -f - || return 1
    has_document "$unpacked/$1/$2" || return 1
    while read -r page; do
        for link in $(links "$page"); do
            has_document "${page%/*}/$link" || { echo "  ${page##*/} links to it"; missing=1; }
        done
    done < <(find "$unpacked/$1" -name '*.md' -o -name '*.md.gz')
    return $missing
}

has_document() {
    [ -e "$1" ] || [ -e "$1.gz" ] || { echo "no ${1#"${work:?}/documents/"}"; return 1; }
}

# links PAGE: the files that it links to, relative to its folder. What has a colon is elsewhere.
links() {
    zcat -f "$1" | grep -oE '\]\([^)#:]+[)#]' | tr -d '](#)' | sort -u
}
