#!/bin/sh
# Builds the documentation as a site, in target/book. Takes mdbook from PATH (cargo install mdbook).
set -eu
cd "$(dirname "$0")/.."
command -v mdbook >/dev/null || { echo "there is no mdbook: cargo install mdbook" >&2; exit 1; }
pages=target/book-pages
rm -rf $pages target/book
mkdir -p $pages
cp -r docs/. $pages
# Documents that lie beside docs/ in the source, and are pages of the book.
for page in README:introduction ARCHITECTURE:architecture CHANGELOG:changelog CONTRIBUTING:contributing SECURITY:security packaging/README:packaging; do
    sed -e 's#](docs/#](#g' -e 's#](\.\./docs/#](#g' "${page%:*}.md" >"$pages/${page#*:}.md"
done
cp crates/c/include/overspill.h LICENSE-MIT LICENSE-APACHE $pages
find $pages -name '*.md' -exec sed -i \
    -e 's#](\(\.\./\)\{0,2\}README\.md#](introduction.md#g' \
    -e 's#](\(\.\./\)\{0,2\}ARCHITECTURE\.md#](architecture.md#g' \
    -e 's#](\(\.\./\)\{0,2\}CHANGELOG\.md#](changelog.md#g' \
    -e 's#](\(\.\./\)\{0,2\}CONTRIBUTING\.md#](contributing.md#g' \
    -e 's#](\(\.\./\)\{0,2\}SECURITY\.md#](security.md#g' \
    -e 's#](\(\.\./\)\{0,2\}packaging/README\.md#](packaging.md#g' \
    -e 's#](\.\./crates/c/include/#](#g' {} +
# A page in guide/ says so of pages beside the book's root.
sed -i -e 's#](\(introduction\|architecture\|changelog\|contributing\|security\|packaging\)\.md#](../\1.md#g' $pages/guide/*.md
mdbook build --dest-dir "$PWD/target/book" .
rm -rf $pages
echo "target/book/index.html"
