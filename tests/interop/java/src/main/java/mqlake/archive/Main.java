package mqlake.archive;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.namesrv.NamesrvStartup;

/**
 * A name server, a broker and {@link mqlake.client.Main} in one JVM, which so loads what all of them load.
 * Arguments: their configuration files.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws Exception {
        NamesrvController namesrv = NamesrvStartup.main0(new String[] {"-c", args[0]});
        BrokerController broker = BrokerStartup.start(BrokerStartup.createBrokerController(new String[] {"-c", args[1]}));
        // a broker registers with the name servers that it has found, which takes it a moment
        while (namesrv.getRouteInfoManager().getAllClusterInfo().getBrokerAddrTable().isEmpty()) {
            broker.registerBrokerAll(true, false, true);
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(50));
        }
        mqlake.client.Main.main(new String[0]);
    }
}
