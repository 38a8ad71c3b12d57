# shellcheck shell=bash
# The documents in packages; sourced by the tests of this folder.

# has_documents FOLDER: the package whose files are listed on standard input has docs/faq.md in FOLDER, and beside it
# every document that faq.md links to. They may be compressed.
has_documents() {
    local listed page
    listed=$(cat)
    for page in faq.md $(grep -o '](\w*\.md' docs/faq.md | cut -c3- | sort -u); do
        grep -qxE "(\./|/)?$1/${page/./\\.}(\.gz)?" <<<"$listed" || { echo "no $page in $1"; return 1; }
    done
}
