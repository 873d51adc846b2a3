<?php
// Builds some hundred megabytes of arrays, strings and objects, changes and drops some, and sums all up.
class Node { public $next; public $text; public $number; }

function build(int $count): array {
    $table = [];
    $last = null;
    for ($i = 0; $i < $count; $i++) {
        $node = new Node;
        $node->text = str_repeat(chr(97 + $i % 26), 40 + $i % 200);
        $node->number = $i;
        $node->next = $last;
        if ($i % 100 == 99) { $last = null; } else { $last = $node; }
        $table["key" . ($i * 7919 % $count)] = $node;
    }
    return $table;
}

$table = build(900000);
printf("%d entries\n", count($table));
$sum = 0;
foreach ($table as $key => $node) { $sum = ($sum * 31 + $node->number + strlen($node->text)) % 1000000007; }
printf("%d\n", $sum);
for ($i = 0; $i < 900000; $i += 3) { unset($table["key$i"]); }
for ($i = 1; $i < 900000; $i += 3) { $table["key$i"]->text .= "x"; }
$sum = crc32("");
foreach ($table as $key => $node) { $sum = crc32($sum . $key . $node->text); }
printf("%d entries, %u\n", count($table), $sum);
printf("%d cycles\n", gc_collect_cycles());
