package mqlake.wire;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * RocketMQ's side of the wire behind a line protocol: one JSON request a line on stdin, one JSON answer a line
 * on stdout, {"error":…} when an exception was thrown. A request names what to "do":
 *
 * <pre>
 * encode, decode, header, body, registration     see {@link Codec}
 * admin.*                                        see {@link Admin}
 * namesrv.*, broker.*                            see {@link Servers}
 * exit
 * </pre>
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        // Whatever a library prints must not get between the answers.
        System.setOut(System.err);
        Admin admin = new Admin();
        Servers servers = new Servers();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject request = JSON.parseObject(line);
            String what = request.getString("do");
            if ("exit".equals(what)) {
                break;
            }
            JSONObject answer;
            try {
                if (what.startsWith("admin.")) {
                    answer = admin.serve(what.substring(6), request);
                } else if (what.startsWith("namesrv.") || what.startsWith("broker.")) {
                    answer = servers.serve(what, request);
                } else {
                    answer = Codec.serve(what, request);
                }
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer = JSONObject.of("error", failure.toString());
            }
            answers.println(answer);
        }
        // Clients and servers leave threads behind that are not daemons.
        Runtime.getRuntime().halt(0);
    }
}
