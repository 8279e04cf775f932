import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/** Sends what tests/producers.rs expects, with Kafka's own client: the same as events.py. */
public class JavaProducer {
    static final String NAME = "java";
    static final int PARTITIONS = 4;
    static String brokers;
    static String topic;

    static List<String> ids(String codec, String kind, int count) {
        List<String> ids = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            ids.add(NAME + "/" + codec + "/" + kind + "/" + number);
        }
        return ids;
    }

    static List<String> joined(List<String> first, List<String> second) {
        List<String> all = new ArrayList<>(first);
        all.addAll(second);
        return all;
    }

    static KafkaProducer<String, String> producer(String codec, Map<String, Object> more) {
        Map<String, Object> properties = new java.util.HashMap<>(more);
        properties.put("bootstrap.servers", brokers);
        properties.put("compression.type", codec);
        properties.put("linger.ms", 20);
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
    }

    static void send(KafkaProducer<String, String> client, String codec, List<String> ids)
            throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int number = 0; number < ids.size(); number++) {
            String id = ids.get(number);
            String body = "{\"id\": \"" + id + "\", \"filler\": \"" + "x".repeat(100) + "\"}";
            var record = new ProducerRecord<>(topic, number % PARTITIONS, id, body);
            record.headers().add("producer", NAME.getBytes(StandardCharsets.UTF_8));
            record.headers().add("codec", codec.getBytes(StandardCharsets.UTF_8));
            sent.add(client.send(record));
        }
        client.flush();
        for (var future : sent) {
            future.get();
        }
    }

    public static void main(String[] arguments) throws Exception {
        brokers = arguments[0];
        topic = arguments[1];
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            List<String> plain = ids(codec, "plain", 60);
            try (var client = producer(codec, Map.of())) {
                List<String> again = joined(plain.subList(0, 1), plain.subList(0, 20));
                send(client, codec, joined(plain, again));
            }
            String name = topic + "-" + NAME + "-" + codec;
            try (var client = producer(codec, Map.of("transactional.id", name))) {
                client.initTransactions();
                client.beginTransaction();
                send(client, codec, joined(ids(codec, "committed", 40), plain.subList(0, 10)));
                client.commitTransaction();
                client.beginTransaction();
                send(client, codec, joined(ids(codec, "aborted", 10), ids(codec, "retried", 10)));
                client.abortTransaction();
                client.beginTransaction();
                send(client, codec, ids(codec, "retried", 10));
                client.commitTransaction();
                client.beginTransaction();
                send(client, codec, ids(codec, "aborted", 10));
                client.abortTransaction();
            }
        }
    }
}
