# Firefox: a picture of a page that writes itself.
echo '<html><body><script>document.write("<p>x</p>".repeat(500))</script></body></html>' >page.html
mkdir "$TMPDIR/profile"
firefox-esr --headless --no-remote --profile "$TMPDIR/profile" --screenshot "$PWD/page.png" \
	"file://$PWD/page.html" >/dev/null 2>&1
file page.png
