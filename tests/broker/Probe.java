import java.io.FileReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;

/** Kafka's own Java client with each properties file given: one line of answer for each. */
public class Probe {
    public static void main(String[] files) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (String file : files) {
            Properties properties = new Properties();
            try (FileReader reader = new FileReader(file)) {
                properties.load(reader);
            }
            threads.add(new Thread(() -> System.out.println(
                file + "\t" + (file.endsWith(".jaas") ? parse(properties) : ask(properties)))));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        System.exit(0);
    }

    static String ask(Properties properties) {
        properties.putIfAbsent("default.api.timeout.ms", "15000");
        properties.putIfAbsent("request.timeout.ms", "14000");
        try (Admin admin = Admin.create(properties)) {
            return "ok " + admin.describeCluster().nodes().get(20, TimeUnit.SECONDS).size();
        } catch (Throwable failure) {
            Throwable cause = failure;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return "failed " + cause.getClass().getSimpleName() + " " + cause.getMessage();
        }
    }

    /** What Kafka's own parser makes of a login: module and options, in hexadecimal so that nothing is lost. */
    static String parse(Properties properties) {
        String login = properties.getProperty("sasl.jaas.config");
        JaasContext context = JaasContext.loadClientContext(Map.of("sasl.jaas.config", new Password(login)));
        StringBuilder found = new StringBuilder();
        for (AppConfigurationEntry entry : context.configurationEntries()) {
            found.append(entry.getLoginModuleName());
            for (String name : new java.util.TreeMap<String, Object>(entry.getOptions()).keySet()) {
                byte[] value = ((String) entry.getOptions().get(name)).getBytes(java.nio.charset.StandardCharsets.UTF_8);
                found.append(' ').append(name).append('=').append(java.util.HexFormat.of().formatHex(value));
            }
            found.append(';');
        }
        return found.toString();
    }
}
