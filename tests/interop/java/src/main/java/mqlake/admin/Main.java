package mqlake.admin;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * RocketMQ's admin tool behind a line protocol: one JSON request a line on stdin, one JSON answer a line on stdout,
 * {"error":…} when an exception was thrown. A request names what to "do":
 *
 * <pre>
 * call   namesrv, method, args [, types]   a method of DefaultMQAdminExt; see {@link Calls}
 * tools  commands                          command lines of mqadmin: what each prints
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
        Calls calls = new Calls();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject request = JSON.parseObject(line);
            String what = request.getString("do");
            if ("exit".equals(what)) {
                break;
            }
            JSONObject answer;
            try {
                answer = "tools".equals(what) ? Tool.run(request.getJSONArray("commands")) : calls.call(request);
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer = JSONObject.of("error", failure.toString());
            }
            answers.println(answer);
        }
        // Clients leave threads behind that are not daemons.
        Runtime.getRuntime().halt(0);
    }
}
