import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import org.apache.kafka.common.config.ConfigDef;

/** Every key that the classes named define, one on each line: Keys CLASS... */
public class Keys {
    public static void main(String[] names) throws Exception {
        for (String name : names) {
            Class<?> type = Class.forName("org.apache.kafka.connect.mirror." + name);
            for (Field field : type.getDeclaredFields()) {
                if (field.getType() == ConfigDef.class) {
                    field.setAccessible(true);
                    print((ConfigDef) field.get(null));
                }
            }
            for (Method method : type.getDeclaredMethods()) {
                boolean plain = Modifier.isStatic(method.getModifiers()) && method.getParameterCount() == 0;
                if (plain && method.getReturnType() == ConfigDef.class) {
                    method.setAccessible(true);
                    print((ConfigDef) method.invoke(null));
                }
            }
        }
    }

    static void print(ConfigDef known) {
        known.names().forEach(System.out::println);
    }
}
