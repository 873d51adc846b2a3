# HAProxy before a server of files: 300 answers of 1 MiB, 16 at a time.
cat >haproxy.cfg <<'END'
global
  maxconn 200
defaults
  mode http
  timeout connect 20s
  timeout client 60s
  timeout server 60s
frontend front
  bind 127.0.0.1:21080
  default_backend back
backend back
  server one 127.0.0.1:21081
END
mkdir -p served
head -c 1048576 /dev/zero | tr '\0' q >served/file
python3 -m http.server 21081 --bind 127.0.0.1 --directory served >/dev/null 2>&1 &
files=$!
haproxy -f haproxy.cfg >/dev/null 2>&1 &
proxy=$!
python3 - <<'END'
import concurrent.futures
import time
import urllib.request


def answer(_):
    return len(urllib.request.urlopen("http://127.0.0.1:21080/file", timeout=60).read()) == 1 << 20


def is_up():
    try:
        return answer(0)
    except OSError:
        return False


while not is_up():
    time.sleep(0.1)
with concurrent.futures.ThreadPoolExecutor(16) as clients:
    print(sum(clients.map(answer, range(300))), "right")
END
kill $files $proxy
wait
