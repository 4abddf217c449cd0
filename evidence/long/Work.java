// SPDX-License-Identifier: Apache-2.0 OR MIT
// Maps with records as keys, lists as values, a sort by two fields; six maps stay alive.
//
//   java Work ROUNDS
import java.util.*;
public class Work {
    record Key(int a, String b) {}
    public static void main(String[] args) {
        int rounds = Integer.parseInt(args[0]);
        long sum = 0;
        Random random = new Random(1);
        List<Map<Key, List<Integer>>> kept = new ArrayList<>();
        for (int r = 0; r < rounds; r++) {
            Map<Key, List<Integer>> map = new HashMap<>();
            for (int i = 0; i < 200_000; i++) {
                int n = random.nextInt(60_000);
                map.computeIfAbsent(new Key(n, "k" + n % 977), k -> new ArrayList<>()).add(i);
            }
            List<Key> keys = new ArrayList<>(map.keySet());
            keys.sort(Comparator.comparing(Key::b).thenComparing(Key::a));
            for (int i = 0; i + 1 < keys.size(); i += 3) sum += map.get(keys.get(i)).size() ^ keys.get(i + 1).a();
            kept.add(map);
            if (kept.size() > 6) kept.remove(random.nextInt(6));
        }
        System.out.println(sum);
    }
}
