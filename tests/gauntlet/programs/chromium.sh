# Chromium: a page that writes itself, as it is afterwards.
cat >page.html <<'END'
<html><body><div id=x></div><script>
let text = '';
for (let i = 0; i < 2000; i++) text += '<p>' + i + ' ' + i * i + '</p>';
document.getElementById('x').innerHTML = text;
document.title = 'done ' + text.length;
</script></body></html>
END
chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$TMPDIR/profile" \
	--dump-dom "file://$PWD/page.html" 2>/dev/null
