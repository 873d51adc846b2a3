# MariaDB: installed anew, 20000 rows of 1280 characters, their sums.
data=$TMPDIR/data
mkdir "$data"
[ "$(id -u)" = 0 ] && chown mysql "$TMPDIR" "$data" && as=--user=mysql
mariadb-install-db $as --datadir="$data" --auth-root-authentication-method=normal >/dev/null 2>&1
mariadbd $as --datadir="$data" --socket="$data/socket" --skip-networking --innodb-buffer-pool-size=64M \
	>"$data/log" 2>&1 &
server=$!
until mariadb -u root -S "$data/socket" -e 'select 1' >/dev/null 2>&1; do
	kill -0 $server || exit
	sleep 0.2
done
mariadb -u root -S "$data/socket" <<'END'
create database t;
use t;
create table a (i int primary key auto_increment, s varchar(2000));
insert into a (s) select repeat(md5(seq), 40) from seq_1_to_20000;
select count(*), sum(length(s)), md5(group_concat(left(s, 1))) from a;
select sum(crc32(s)), count(distinct s) from a;
END
kill $server
wait $server
