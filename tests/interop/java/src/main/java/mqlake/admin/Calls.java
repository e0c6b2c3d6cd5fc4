package mqlake.admin;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import mqlake.lines.Patience;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Methods of DefaultMQAdminExt by their names. Arguments are JSON; of several methods with a name and as many
 * arguments, "types" (the simple names of the parameters' classes) picks one. The answer is {"json": text}, the
 * result as RocketMQ writes it, or {"messages": […]}.
 */
final class Calls {
    private final Map<String, DefaultMQAdminExt> tools = new HashMap<>();

    JSONObject call(JSONObject request) throws Throwable {
        DefaultMQAdminExt admin = tool(request.getString("namesrv"));
        JSONArray given = request.getJSONArray("args");
        Method method = find(request.getString("method"), given.size(), request.getList("types", String.class));
        Object[] args = new Object[given.size()];
        for (int i = 0; i < args.length; i++) {
            args[i] = convert(given.get(i), method.getParameterTypes()[i]);
        }
        try {
            return answer(method.invoke(admin, args));
        } catch (InvocationTargetException failure) {
            throw failure.getCause();
        }
    }

    private static Method find(String name, int count, List<String> types) {
        List<Method> found = new ArrayList<>();
        for (Method method : DefaultMQAdminExt.class.getMethods()) {
            if (method.getName().equals(name) && method.getParameterCount() == count && fits(method, types)) {
                found.add(method);
            }
        }
        if (found.size() != 1) {
            throw new IllegalArgumentException(name + " with " + count + " arguments: " + found);
        }
        return found.get(0);
    }

    private static boolean fits(Method method, List<String> types) {
        for (int i = 0; types != null && i < types.size(); i++) {
            if (!method.getParameterTypes()[i].getSimpleName().equals(types.get(i))) {
                return false;
            }
        }
        return true;
    }

    private static Object convert(Object given, Class<?> type) {
        if (given == null) {
            return null;
        }
        if (type == Properties.class) {
            Properties properties = new Properties();
            ((JSONObject) given).forEach((key, value) -> properties.setProperty(key, (String) value));
            return properties;
        }
        if (type == Set.class) {
            return new HashSet<>((JSONArray) given);
        }
        return JSON.parseObject(JSON.toJSONString(given), type);
    }

    private static JSONObject answer(Object result) {
        if (result instanceof MessageExt) {
            return JSONObject.of("messages", List.of(message((MessageExt) result)));
        }
        if (result instanceof QueryResult) {
            return JSONObject.of("messages",
                ((QueryResult) result).getMessageList().stream().map(Calls::message).toList());
        }
        return JSONObject.of("json", RemotingSerializable.toJson(result, false));
    }

    private static JSONObject message(MessageExt message) {
        JSONObject object = new JSONObject();
        object.put("topic", message.getTopic());
        object.put("queueId", message.getQueueId());
        object.put("queueOffset", message.getQueueOffset());
        object.put("msgId", message.getMsgId());
        object.put("keys", message.getKeys());
        object.put("tags", message.getTags());
        object.put("body", new String(message.getBody()));
        object.put("properties", Map.copyOf(message.getProperties()));
        return object;
    }

    private DefaultMQAdminExt tool(String nameServer) throws Exception {
        DefaultMQAdminExt tool = tools.get(nameServer);
        if (tool == null) {
            tool = new DefaultMQAdminExt(Patience.MILLIS);
            tool.setNamesrvAddr(nameServer);
            Patience.give(tool);
            tool.setInstanceName("mqlake-" + System.nanoTime());
            tool.start();
            tools.put(nameServer, tool);
        }
        return tool;
    }
}
