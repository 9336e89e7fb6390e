import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** What the real client of MM2 says of a target: RemoteClusters BOOTSTRAP SOURCE GROUP. One line for each answer. */
public class RemoteClusters {
    public static void main(String[] args) throws Exception {
        Properties given = new Properties();
        given.put("bootstrap.servers", args[0]);
        Map<String, Object> settings = new TreeMap<>();
        given.forEach((key, value) -> settings.put(key.toString(), value));
        Map<TopicPartition, OffsetAndMetadata> found =
            RemoteClusterUtils.translateOffsets(settings, args[1], args[2], Duration.ofSeconds(30));
        Map<String, Long> offsets = new TreeMap<>();
        found.forEach((at, offset) -> offsets.put(at.toString(), offset.offset()));
        System.out.println("offsets " + offsets);
        System.out.println("hops " + RemoteClusterUtils.replicationHops(settings, args[1]));
        System.out.println("upstream " + new TreeSet<>(RemoteClusterUtils.upstreamClusters(settings)));
        System.out.println("heartbeats " + new TreeSet<>(RemoteClusterUtils.heartbeatTopics(settings)));
        System.out.println("checkpoints " + new TreeSet<>(RemoteClusterUtils.checkpointTopics(settings)));
    }
}
