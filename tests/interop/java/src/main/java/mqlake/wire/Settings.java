package mqlake.wire;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.Properties;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.remoting.netty.TlsSystemConfig;

/**
 * The keys of RocketMQ's configuration classes, as {@code MixAll} finds them.
 *
 * <pre>
 * settings      class      keys: name, type, value (the default as a broker.conf has it; none for null)
 * tls                      keys: the system properties of TLS
 * </pre>
 */
final class Settings {
    private Settings() {
    }

    static JSONObject tls() throws Exception {
        JSONArray keys = new JSONArray();
        for (Field field : TlsSystemConfig.class.getDeclaredFields()) {
            if (field.getType() == String.class && Modifier.isFinal(field.getModifiers())) {
                keys.add(field.get(null));
            }
        }
        return JSONObject.of("keys", keys);
    }

    static JSONObject settings(JSONObject request) throws Exception {
        Class<?> type = Class.forName(request.getString("class"));
        Properties defaults = MixAll.object2Properties(type.getDeclaredConstructor().newInstance());
        JSONArray keys = new JSONArray();
        for (Class<?> declaring = type; declaring != Object.class; declaring = declaring.getSuperclass()) {
            for (Field field : declaring.getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers()) || field.getName().startsWith("this")) {
                    continue;
                }
                JSONObject key = JSONObject.of("name", field.getName(), "type", field.getType().getSimpleName());
                key.put("value", defaults.getProperty(field.getName()));
                keys.add(key);
            }
        }
        return JSONObject.of("keys", keys);
    }
}
