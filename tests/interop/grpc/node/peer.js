// RocketMQ's Node.js client through everything it can do with a broker: node peer.js HOST:PORT PREFIX [TOPICS]

const { Producer, SimpleConsumer, PushConsumer, ConsumeResult } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const [endpoints, prefix, first = 'NFDX'] = process.argv.slice(2);
const PATIENCE_MS = 90000;
const quiet = { debug() {}, info() {}, warn() {}, error: (...what) => console.error(...what) };
const common = { endpoints, namespace: '', requestTimeout: 20000, logger: quiet };
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const message = (topic, body, more = {}) => ({ topic: prefix + topic, body: Buffer.from(body), ...more });
const described = (view) => ({
  body: view.body.toString(),
  id: view.messageId,
  tag: view.tag ?? null,
  keys: view.keys,
  p: view.properties.get('p') ?? null,
  attempt: view.deliveryAttempt,
});

async function simple(group, topic, expression = '*') {
  const subscriptions = new Map([[prefix + topic, expression]]);
  const consumer = new SimpleConsumer({ ...common, consumerGroup: prefix + group, subscriptions, awaitDuration: 5000 });
  await consumer.startup();
  return consumer;
}

async function receive(consumer, count) {
  const found = [];
  const deadline = Date.now() + PATIENCE_MS;
  while (found.length < count && Date.now() < deadline) {
    for (const view of await consumer.receive(16, 20000)) {
      found.push(described(view));
      await consumer.ack(view);
    }
  }
  return found;
}

async function push(group, topic, enough, fails) {
  const seen = [];
  const consumed = [];
  const messageListener = {
    async consume(view) {
      const body = view.body.toString();
      seen.push(described(view));
      if ((fails[body] ?? 0) > 0) {
        fails[body] -= 1;
        return ConsumeResult.FAILURE;
      }
      consumed.push(body);
      return ConsumeResult.SUCCESS;
    },
  };
  const subscriptions = new Map([[prefix + topic, '*']]);
  const consumer = new PushConsumer({ ...common, consumerGroup: prefix + group, subscriptions, messageListener });
  await consumer.startup();
  const deadline = Date.now() + PATIENCE_MS;
  while (!enough(seen, consumed) && Date.now() < deadline) await sleep(20);
  await sleep(500); // the last acknowledgement is on its way
  await consumer.shutdown();
  return { seen, consumed };
}

async function main() {
  const result = {};
  const producer = new Producer({
    ...common,
    topics: [...first].map((topic) => prefix + topic),
    checker: { check: async () => TransactionResolution.COMMIT },
  });
  await producer.startup();

  result.sent = [];
  for (let number = 0; number < 10; number++) {
    const more = { tag: 'ab'[number % 2], keys: [`k-${number}`], properties: new Map([['p', `${number}`]]) };
    result.sent.push((await producer.send(message('N', `n-${number}`, more))).messageId);
  }
  let consumer = await simple('gs', 'N', 'a');
  result.simple = [];
  const deadline = Date.now() + PATIENCE_MS;
  while (result.simple.length < 5 && Date.now() < deadline) {
    for (const view of await consumer.receive(16, 20000)) {
      result.simple.push(described(view));
      if (result.changed === undefined) {
        result.changed = view.body.toString();
        await consumer.changeInvisibleDuration(view, 1000);
      } else {
        await consumer.ack(view);
      }
    }
  }
  result.again = await receive(consumer, 1);
  await consumer.shutdown();

  result.push = (await push('gp', 'N', (_, consumed) => consumed.length >= 10, { 'n-0': 1 })).seen;

  for (let number = 0; number < 6; number++) {
    await producer.send(message('F', `f-${number}`, { messageGroup: 'g1' }));
  }
  result.fifo = (await push('go', 'F', (_, consumed) => consumed.length >= 6, { 'f-2': 1 })).consumed;

  const due = Date.now() + 4000;
  const recalled = await producer.send(message('D', 'recalled', { deliveryTimestamp: new Date(due) }));
  await producer.send(message('D', 'kept', { deliveryTimestamp: new Date(due) }));
  await producer.recallMessage(prefix + 'D', recalled.recallHandle);
  consumer = await simple('gd', 'D');
  result.delayed = (await receive(consumer, 1)).map((each) => each.body);
  result.early = Date.now() < due;
  await consumer.shutdown();

  for (const body of ['commit', 'rollback', 'orphan']) {
    const transaction = producer.beginTransaction();
    await producer.send(message('X', body), transaction);
    if (body !== 'orphan') await transaction[body]();
  }
  consumer = await simple('gx', 'X');
  result.transactions = (await receive(consumer, 2)).map((each) => each.body).sort();
  await consumer.shutdown();

  await producer.send(message('F', 'dead', { messageGroup: 'g2' }));
  const dead = (each) => each.body === 'dead';
  const { seen } = await push('gq', 'F', (all) => all.filter(dead).length >= 2, { dead: 99 });
  result.dead = seen.filter(dead).length;

  await producer.shutdown();
  console.log(JSON.stringify(result));
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
