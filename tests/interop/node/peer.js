// Alibaba's client for Node.js (ali-ons) as a peer: node peer.js NAMESRV TOPIC COUNT sends so many messages, one after
// another, and prints a line of JSON for each.
const { Producer, Message } = require('ali-ons');

async function send(namesrv, topic, count) {
  const quiet = { info() {}, debug() {}, warn: console.error, error: console.error };
  // httpclient would ask for the address of a name server
  const producer = new Producer({ producerGroup: 'GID_node', nameSrv: namesrv, httpclient: {}, logger: quiet });
  await producer.ready();
  for (let number = 0; number < count; number++) {
    const message = new Message(topic, ['even', 'odd'][number % 2], String(number));
    message.keys = [`key${number}`];
    const sent = await producer.send(message);
    console.log(JSON.stringify({ status: sent.sendStatus, id: sent.msgId }));
  }
  await producer.close();
}

const [namesrv, topic, count] = process.argv.slice(2);
send(namesrv, topic, Number(count)).then(
  () => process.exit(0),
  error => {
    console.error(error);
    process.exit(1);
  },
);
