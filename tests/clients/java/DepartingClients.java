import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Consumers of Kafka's own client that leave in different ways, as tests/support/departing_clients.py has them of
 * other libraries: the first line of stdin lists them as JSON, each of the others is GROUP/NAME and a command.
 */
public final class DepartingClients {
    private static final Duration POLL = Duration.ofMillis(200);

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        Map<String, BlockingQueue<String>> running = new HashMap<>();
        for (JsonNode client : new ObjectMapper().readTree(lines.readLine())) {
            BlockingQueue<String> commands = new LinkedBlockingQueue<>();
            running.put(client.get("group").asText() + "/" + client.get("name").asText(), commands);
            Thread thread = new Thread(null, () -> consume(client, commands), "client", 256 * 1024);
            thread.setDaemon(true);
            thread.start();
        }
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ");
            running.get(parts[0]).add(parts[1]);
        }
    }

    private static void consume(JsonNode client, BlockingQueue<String> commands) {
        try {
            if (client.get("waits").asBoolean()) {
                commands.take();
            }
            KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings(client));
            consumer.subscribe(topics(client));
            boolean commits = client.get("commits").asText().equals("application");
            long every = Math.round(client.get("commit_seconds").asDouble() * 1e9);
            long commitAt = System.nanoTime() + every;
            for (String command = ""; !command.equals("close"); command = next(commands)) {
                if (command.equals("stall")) {
                    Thread.sleep(Long.MAX_VALUE);
                } else if (command.equals("pause")) {
                    Thread.sleep(client.get("pause_seconds").asInt() * 1000L);
                } else if (command.equals("force")) {
                    consumer.enforceRebalance();
                }
                consumer.poll(POLL);
                if (commits && System.nanoTime() - commitAt >= 0) {
                    commitAt += every;
                    commit(consumer);
                }
            }
            consumer.close();
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private static String next(BlockingQueue<String> commands) {
        String command = commands.poll();
        return command == null ? "" : command;
    }

    private static void commit(KafkaConsumer<byte[], byte[]> consumer) {
        try {
            consumer.commitSync();
        } catch (KafkaException rebalancing) {
            // The next commit has these offsets, too.
        }
    }

    private static Collection<String> topics(JsonNode client) {
        return List.of(client.get("topic").asText().split(","));
    }

    private static Properties settings(JsonNode client) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", client.get("bootstrap").asText());
        settings.put("group.id", client.get("group").asText());
        settings.put("client.id", client.get("name").asText());
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", String.valueOf(client.get("commits").asText().equals("client")));
        settings.put("auto.commit.interval.ms", String.valueOf(Math.round(client.get("commit_seconds").asDouble() * 1000)));
        settings.put("max.poll.interval.ms", client.get("poll_ms").asText());
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("receive.buffer.bytes", "16384");
        if (!client.get("instance_id").isNull()) {
            settings.put("group.instance.id", client.get("instance_id").asText());
        }
        if (client.get("library").asText().equals("java-kip-848")) {
            settings.put("group.protocol", "consumer");
        } else {
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
            settings.put("session.timeout.ms", client.get("session_ms").asText());
            settings.put("heartbeat.interval.ms", "1000");
        }
        return settings;
    }
}
