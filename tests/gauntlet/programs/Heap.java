import java.io.InputStream;
import java.util.*;
import java.util.concurrent.*;

/** A heap of some hundred megabytes, threads, and child processes: {@code java Heap heap|threads|children}. */
public class Heap {
    static final int COUNT = 600_000;

    static final class Entry {
        final int number;
        final String text;
        Entry next;

        Entry(int number, String text, Entry next) {
            this.number = number;
            this.text = text;
            this.next = next;
        }
    }

    static String work(int count, int seed) {
        HashMap<String, Entry> table = new HashMap<>();
        Entry last = null;
        for (int i = 0; i < count; i++) {
            last = new Entry(i, "text " + (i * 7919L + seed) % 1000003, i % 50 == 0 ? null : last);
            table.put("key" + i * 31L % count, last);
        }
        for (int i = 0; i < count; i += 3) {
            table.remove("key" + i);
        }
        long sum = 0;
        for (int round = 0; round < 3; round++) {
            long[] numbers = new long[count * 2];
            for (int i = 0; i < numbers.length; i++) {
                numbers[i] = (long) i * seed;
            }
            for (Entry entry : table.values()) {
                sum = (sum * 31 + entry.text.hashCode() + entry.number + numbers[entry.number]
                        + (entry.next == null ? 0 : entry.next.number)) % 1_000_000_007L;
            }
        }
        return table.size() + " " + sum;
    }

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "heap" -> System.out.println(work(COUNT * 2, 1));
            case "threads" -> {
                ExecutorService pool = Executors.newFixedThreadPool(4);
                List<Future<String>> results = new ArrayList<>();
                for (int i = 0; i < 8; i++) {
                    int seed = i;
                    results.add(pool.submit(() -> work(COUNT / 4, seed)));
                }
                for (Future<String> result : results) {
                    System.out.println(result.get());
                }
                pool.shutdown();
            }
            case "child" -> System.out.println(work(COUNT / 20, Integer.parseInt(arguments[1])));
            default -> {
                String java = ProcessHandle.current().info().command().get();
                for (int i = 0; i < 6; i++) {
                    Process child = new ProcessBuilder(java, "-Xmx64m", "Heap", "child", "" + i).start();
                    try (InputStream output = child.getInputStream()) {
                        System.out.print(new String(output.readAllBytes()));
                    }
                    System.out.println("status " + child.waitFor());
                }
            }
        }
    }
}
