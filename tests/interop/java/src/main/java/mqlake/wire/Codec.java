package mqlake.wire;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.lang.annotation.Annotation;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.SerializeType;
import org.apache.rocketmq.remoting.protocol.body.RegisterBrokerBody;

/**
 * Commands, headers and bodies by RocketMQ's own classes. Bytes travel as base64.
 *
 * <pre>
 * encode        type, code, flag, opaque, remark, fields{}, body     frame
 * decode        frame (without its length)                           the same
 * header        class                                                its fields: name, type, mandatory
 * fields        class, fields{}                                      what the class decodes and encodes again
 * body          class [, json]                                       JSON of a new one, or of the one that json gives
 * registration  topics, dataVersion                                  RegisterBrokerBody, compressed
 * versions      count                                                names of the numbers from 0 on
 * </pre>
 */
final class Codec {
    private Codec() {
    }

    static JSONObject serve(String what, JSONObject request) throws Exception {
        switch (what) {
            case "encode":
                return encode(request);
            case "decode":
                return decode(request);
            case "header":
                return header(Class.forName(request.getString("class")));
            case "fields":
                return fields(request);
            case "body":
                return body(request);
            case "registration":
                return registration(request);
            case "versions":
                return versions(request.getIntValue("count"));
            default:
                throw new IllegalArgumentException(what);
        }
    }

    private static JSONObject encode(JSONObject request) {
        RemotingCommand command = RemotingCommand.createRequestCommand(request.getIntValue("code"), null);
        command.setSerializeTypeCurrentRPC(SerializeType.valueOf(request.getString("type")));
        command.setFlag(request.getIntValue("flag"));
        command.setOpaque(request.getIntValue("opaque"));
        command.setRemark(request.getString("remark"));
        command.setVersion(MQVersion.CURRENT_VERSION);
        if (request.containsKey("fields")) {
            command.setExtFields(strings(request.getJSONObject("fields")));
        }
        if (request.containsKey("body")) {
            command.setBody(Base64.getDecoder().decode(request.getString("body")));
        }
        return JSONObject.of("frame", base64(command.encode()));
    }

    private static JSONObject decode(JSONObject request) throws Exception {
        RemotingCommand command = RemotingCommand.decode(Base64.getDecoder().decode(request.getString("frame")));
        JSONObject answer = new JSONObject();
        answer.put("type", command.getSerializeTypeCurrentRPC().name());
        answer.put("code", command.getCode());
        answer.put("flag", command.getFlag());
        answer.put("opaque", command.getOpaque());
        answer.put("remark", command.getRemark());
        answer.put("language", command.getLanguage().name());
        answer.put("version", command.getVersion());
        answer.put("fields", command.getExtFields() == null ? Map.of() : command.getExtFields());
        answer.put("body", command.getBody() == null ? null : Base64.getEncoder().encodeToString(command.getBody()));
        return answer;
    }

    private static JSONObject versions(int count) {
        JSONArray names = new JSONArray();
        for (int number = 0; number < count; number++) {
            names.add(MQVersion.getVersionDesc(number));
        }
        return JSONObject.of("names", names);
    }

    private static JSONObject header(Class<?> type) {
        JSONArray fields = new JSONArray();
        for (Class<?> declaring = type; declaring != Object.class; declaring = declaring.getSuperclass()) {
            for (Field field : declaring.getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers()) || field.getName().startsWith("this")) {
                    continue;
                }
                boolean mandatory = false;
                for (Annotation annotation : field.getAnnotations()) {
                    mandatory |= annotation.annotationType().getSimpleName().equals("CFNotNull");
                }
                fields.add(JSONObject.of("name", field.getName(), "type", field.getType().getSimpleName(),
                    "mandatory", mandatory));
            }
        }
        return JSONObject.of("fields", fields);
    }

    private static JSONObject fields(JSONObject request) throws Exception {
        Class<? extends CommandCustomHeader> type =
            Class.forName(request.getString("class")).asSubclass(CommandCustomHeader.class);
        RemotingCommand command = RemotingCommand.createRequestCommand(0, null);
        command.setExtFields(strings(request.getJSONObject("fields")));
        CommandCustomHeader header = command.decodeCommandCustomHeader(type);
        RemotingCommand again = RemotingCommand.createRequestCommand(0, header);
        again.makeCustomHeaderToNet();
        return JSONObject.of("fields", again.getExtFields() == null ? Map.of() : again.getExtFields());
    }

    private static JSONObject body(JSONObject request) throws Exception {
        Class<?> type = Class.forName(request.getString("class"));
        Object body = request.containsKey("json")
            ? RemotingSerializable.decode(request.getString("json").getBytes(StandardCharsets.UTF_8), type)
            : type.getDeclaredConstructor().newInstance();
        return JSONObject.of("json", RemotingSerializable.toJson(body, false));
    }

    private static JSONObject registration(JSONObject request) {
        RegisterBrokerBody body = new RegisterBrokerBody();
        for (Object name : request.getJSONArray("topics")) {
            TopicConfig config = new TopicConfig((String) name, 3, 4, 6);
            config.setAttributes(new HashMap<>(Map.of("+message.type", "FIFO")));
            body.getTopicConfigSerializeWrapper().getTopicConfigTable().put((String) name, config);
        }
        body.getTopicConfigSerializeWrapper().getDataVersion().setTimestamp(request.getLongValue("timestamp"));
        body.getFilterServerList().add("10.0.0.1:1");
        return JSONObject.of("body", Base64.getEncoder().encodeToString(body.encode(true)));
    }

    private static HashMap<String, String> strings(JSONObject object) {
        HashMap<String, String> strings = new HashMap<>();
        object.forEach((key, value) -> strings.put(key, (String) value));
        return strings;
    }

    private static String base64(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return Base64.getEncoder().encodeToString(bytes);
    }
}
